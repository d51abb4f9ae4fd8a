//! What the demo teaches: families of small tasks whose answers a program can check.
//! Each family is one entry of `all` and one function that makes a task from words; change the demo there.
//! Training, gate and test tasks of one seed never share a word, so nothing measured was ever trained on.

use std::collections::HashSet;

use reef_core::{Gate, Grader, HeldOutTask, Message};
use serde_json::{Value, json};

use super::random::Random;

/// Short common English words, one a line.
const WORDS: &str = include_str!("words.txt");
/// Eighths of the words that only test tasks use, and that only gate tasks use; training has the rest.
const TEST_EIGHTHS: usize = 3;
const GATE_EIGHTHS: usize = 1;
/// Draws per wanted task before a repeated prompt is taken for the end of the supply.
const DRAWS_PER_TASK_MAX: usize = 20;

/// How hard a family is for the default model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difficulty {
    /// Learned within a few steps; its figures are the headline of the summary.
    Easy,
    /// Needs more steps.
    Harder,
}

/// A prompt and the one right answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Task {
    /// The user's message.
    pub prompt: String,
    /// The answer that counts as exact.
    pub wanted: String,
}

/// A kind of task, and how it is taught.
#[derive(Debug, Clone)]
pub struct Family {
    /// Name; part of the scenario's name: a-z, 0-9 and '-'.
    pub name: &'static str,
    /// How hard.
    pub difficulty: Difficulty,
    /// System message; empty for none.
    pub system: &'static str,
    /// Makes a task from the next words of a deck.
    pub task: fn(&mut Deck) -> Task,
    /// Tokens of an answer at most.
    pub tokens_max: u32,
    /// Scored answers that make one step of the learner.
    pub batch_size: u32,
    /// Steps after which the lesson ends.
    pub steps_max: u32,
    /// Minutes after which the lesson ends, measuring included.
    pub minutes_max: f64,
    /// Held-out prompts that are measured before and after.
    pub test_tasks: usize,
    /// Held-out tasks that the server's gate measures candidates on.
    pub gate_tasks: usize,
    /// The gate of the scenario.
    pub gate: Gate,
    /// Further keys of the recipe's configuration, as a JSON object.
    pub recipe_config: Value,
}

/// The families of the demo, easy first.
pub fn all() -> Vec<Family> {
    let family = |name, difficulty, system, task| Family {
        name,
        difficulty,
        system,
        task,
        tokens_max: 8,
        batch_size: 32,
        steps_max: 12,
        minutes_max: 4.0,
        test_tasks: 100,
        gate_tasks: 24,
        gate: Gate::non_inferiority(0.1),
        recipe_config: json!({ "policy_lr": 5e-4, "critic_lr": 5e-3, "critic_warmup_steps": 1 }),
    };
    let harder = |name, system, task| Family {
        steps_max: 20,
        minutes_max: 10.0,
        ..family(name, Difficulty::Harder, system, task)
    };
    vec![
        family("repeat", Difficulty::Easy, "Answer with one word.", repeat),
        harder("first-word", "Answer with one word.", first_word),
        harder("title-case", "Answer with the result only.", title_case),
    ]
}

/// The families of a choice: `all`, `easy`, or names separated by commas.
///
/// # Errors
/// A sentence that names what is not known and what is.
pub fn select(choice: &str) -> Result<Vec<Family>, String> {
    let known = all();
    match choice.trim() {
        "all" => return Ok(known),
        "easy" => return Ok(known.into_iter().filter(|family| family.difficulty == Difficulty::Easy).collect()),
        _ => {}
    }
    let find = |name: &str| known.iter().find(|family| family.name == name).cloned();
    let mut chosen: Vec<Family> = Vec::new();
    for name in choice.split(',').map(str::trim) {
        let family = find(name).ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|family| family.name).collect();
            format!("there is no family '{}'; use all, easy, or some of {}", name.escape_default(), names.join(", "))
        })?;
        if chosen.iter().any(|earlier| earlier.name == name) {
            return Err(format!("the family '{name}' is there twice; name it once"));
        }
        chosen.push(family);
    }
    Ok(chosen)
}

fn repeat(deck: &mut Deck) -> Task {
    let word = deck.word();
    Task { prompt: format!("Repeat this word and nothing else: {word}"), wanted: word.to_owned() }
}

fn title_case(deck: &mut Deck) -> Task {
    let word = deck.word();
    let (initial, rest) = word.split_at(1);
    let prompt = format!("Write this word with a capital first letter: {word}");
    Task { prompt, wanted: format!("{}{rest}", initial.to_uppercase()) }
}

fn first_word(deck: &mut Deck) -> Task {
    let (first, second) = (deck.word(), deck.word());
    Task { prompt: format!("Say only the first word: {first} {second}"), wanted: first.to_owned() }
}

/// How good an answer is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Graded {
    /// 0.5 · similarity + 0.5 · exact, in [0, 1].
    pub reward: f64,
    /// Equal to the wanted answer, spaces around it aside.
    pub exact: bool,
}

impl Task {
    /// Grades an answer: similarity gives a slope to climb, exactness the goal.
    pub fn grade(&self, answer: &str) -> Graded {
        let exact = Grader::Exact.grade(answer, &self.wanted);
        let similarity = Grader::Similarity.grade(answer, &self.wanted);
        Graded { reward: 0.5 * similarity + 0.5 * exact, exact: exact == 1.0 }
    }
}

/// The tasks of one seed.
#[derive(Debug, Clone)]
pub struct Splits {
    /// Source of training tasks; never runs dry.
    pub train: Deck,
    /// Tasks for the server's gate.
    pub gate: Vec<Task>,
    /// Tasks measured before and after.
    pub test: Vec<Task>,
}

impl Family {
    /// The conversation that asks a task.
    pub fn messages(&self, task: &Task) -> Vec<Message> {
        let message = |role: &str, content: &str| Message { role: role.to_owned(), content: content.to_owned() };
        let system = (!self.system.is_empty()).then(|| message("system", self.system));
        system.into_iter().chain([message("user", &task.prompt)]).collect()
    }

    /// A task as the server's gate takes it; graded by similarity, which moves before exactness does.
    pub fn held_out(&self, task: &Task) -> HeldOutTask {
        HeldOutTask { messages: self.messages(task), answer: task.wanted.clone(), grader: Grader::Similarity }
    }

    /// The recipe's configuration with the batch size in it.
    pub fn config(&self) -> Value {
        let mut config = self.recipe_config.as_object().cloned().unwrap_or_default();
        config.insert("batch_size".to_owned(), json!(self.batch_size));
        Value::Object(config)
    }

    /// Deals the words out and makes the held-out tasks; equal seeds give equal splits.
    pub fn splits(&self, seed: u64) -> Splits {
        let mut random = Random::new(seed);
        let mut words: Vec<&'static str> = WORDS.split_whitespace().collect();
        random.shuffle(&mut words);
        let test = words.len() * TEST_EIGHTHS / 8;
        let gate = words.len() * GATE_EIGHTHS / 8;
        let mut rest = words.into_iter();
        let mut deal = |count: usize| Deck::new(rest.by_ref().take(count).collect(), random.bits());
        let (mut test, mut gate, train) = (deal(test), deal(gate), deal(usize::MAX));
        Splits {
            train,
            gate: self.distinct(&mut gate, self.gate_tasks),
            test: self.distinct(&mut test, self.test_tasks),
        }
    }

    /// A prompt that came twice would count twice; fewer tasks are the honest answer to a short supply.
    fn distinct(&self, deck: &mut Deck, count: usize) -> Vec<Task> {
        let mut seen = HashSet::new();
        let draws = std::iter::repeat_with(|| (self.task)(deck)).take(count.saturating_mul(DRAWS_PER_TASK_MAX));
        draws.filter(|task| seen.insert(task.prompt.clone())).take(count).collect()
    }
}

/// Words that are dealt in random order, every word once before any comes again.
#[derive(Debug, Clone)]
pub struct Deck {
    words: Vec<&'static str>,
    next: usize,
    random: Random,
}

impl Deck {
    fn new(words: Vec<&'static str>, seed: u64) -> Self {
        Self { words, next: 0, random: Random::new(seed) }
    }

    /// The next word.
    pub fn word(&mut self) -> &'static str {
        if self.next >= self.words.len() {
            self.random.shuffle(&mut self.words);
            self.next = 0;
        }
        let word = self.words.get(self.next).copied().unwrap_or_default();
        self.next += 1;
        word
    }

    /// A number that shapes a task or its sampling, from the same seed.
    pub fn bits(&mut self) -> u64 {
        self.random.bits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_of(tasks: &[Task]) -> HashSet<&str> {
        let known: HashSet<&str> = WORDS.split_whitespace().collect();
        tasks
            .iter()
            .flat_map(|task| task.prompt.rsplit(": ").next().unwrap_or_default().split(' '))
            .inspect(|word| assert!(known.contains(word), "{word}"))
            .collect()
    }

    fn training_tasks(family: &Family, seed: u64, count: usize) -> Vec<Task> {
        let mut deck = family.splits(seed).train;
        (0..count).map(|_| (family.task)(&mut deck)).collect()
    }

    #[test]
    fn the_word_list_holds_each_word_once() {
        let words: Vec<&str> = WORDS.split_whitespace().collect();
        assert!(words.len() >= 600);
        assert_eq!(words.iter().collect::<HashSet<_>>().len(), words.len());
        assert!(words.iter().all(|word| word.len() >= 2 && word.bytes().all(|b| b.is_ascii_lowercase())));
    }

    #[test]
    fn training_gate_and_test_share_no_word() {
        for family in all() {
            for seed in [0, 1, 2] {
                let splits = family.splits(seed);
                let train = training_tasks(&family, seed, 2000);
                let (train, gate, test) = (words_of(&train), words_of(&splits.gate), words_of(&splits.test));
                assert!(
                    train.is_disjoint(&gate) && train.is_disjoint(&test) && gate.is_disjoint(&test),
                    "{}",
                    family.name
                );
                assert_eq!((splits.test.len(), splits.gate.len()), (family.test_tasks, family.gate_tasks));
                assert_eq!(splits.test.iter().collect::<HashSet<_>>().len(), splits.test.len());
            }
        }
    }

    #[test]
    fn equal_seeds_give_equal_tasks_and_others_do_not() {
        for family in all() {
            assert_eq!(family.splits(5).test, family.splits(5).test);
            assert_eq!(training_tasks(&family, 5, 50), training_tasks(&family, 5, 50));
            assert_ne!(family.splits(5).test, family.splits(6).test);
        }
    }

    #[test]
    fn families_are_chosen_by_name_and_unknown_ones_are_refused() {
        let names =
            |choice: &str| select(choice).map(|families| families.iter().map(|family| family.name).collect::<Vec<_>>());
        assert_eq!(names("all").expect("all").len(), all().len());
        assert!(select("easy").expect("easy").iter().all(|family| family.difficulty == Difficulty::Easy));
        assert_eq!(names("first-word, repeat").expect("two"), ["first-word", "repeat"]);
        assert!(names("repeet").expect_err("unknown").contains("'repeet'; use all, easy, or some of repeat"));
        assert!(names("repeat,repeat").is_err() && names("").is_err());
    }

    #[test]
    fn a_reward_rises_with_similarity_and_is_one_only_for_the_exact_answer() {
        let task = Task { prompt: String::new(), wanted: "apple".to_owned() };
        assert_eq!(task.grade(" apple\n"), Graded { reward: 1.0, exact: true });
        let near = task.grade("appel");
        assert!((near.reward - 0.4).abs() < 1e-12 && !near.exact);
        assert!(task.grade("The word is apple.").reward < near.reward);
    }

    #[test]
    fn the_configuration_carries_the_batch_size() {
        for family in all() {
            assert_eq!(family.config().get("batch_size"), Some(&json!(family.batch_size)));
            assert!(family.config().get("policy_lr").is_some());
        }
    }

    #[test]
    fn a_family_without_system_message_asks_with_one_message() {
        let mut families = all();
        let family = families.first_mut().expect("a family");
        family.system = "";
        let task = Task { prompt: "p".to_owned(), wanted: "w".to_owned() };
        assert_eq!(family.messages(&task).len(), 1);
    }
}
