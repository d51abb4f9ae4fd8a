//! The worked numbers of the grades, and the table of decisions.

use reef_recipe::{Entry, EntryKind};
use reef_recipe_skillclaw::decide::{Wanted, merged, wanted};
use reef_recipe_skillclaw::judge::{instruction, score, weighted};
use reef_recipe_skillclaw::sessions::{Session, groups, mentions};

#[test]
fn grades_are_weighted_by_what_matters() {
    assert!((weighted([0.8, 0.6, 1.0, 0.5]) - 0.72).abs() < 1e-12);
    assert!((weighted([1.0; 4]) - 1.0).abs() < 1e-12);
    let answer = r#"{"task_completion": 0.8, "response_quality": 0.6, "efficiency": 1, "tool_usage": 0.5}"#;
    assert!(score(&format!("```json\n{answer}\n```")).is_some_and(|score| (score - 0.72).abs() < 1e-12));
    for bad in [
        "0.9",
        "{}",
        &answer.replace("0.8", "8"),
        &answer.replace("0.8", "\"0.8\""),
        &answer.replace("efficiency", "speed"),
    ] {
        assert_eq!(score(bad), None, "{bad}");
    }
    assert!(
        instruction()
            .contains(r#"{"task_completion": 0.0, "response_quality": 0.0, "efficiency": 0.0, "tool_usage": 0.0}"#)
    );
}

fn session(skills: &[&str]) -> Session {
    Session { text: String::new(), skills: skills.iter().map(|&id| id.to_owned()).collect() }
}

#[test]
fn a_session_is_in_the_group_of_each_of_its_skills() {
    let found = groups(&[session(&["csv", "git"]), session(&[]), session(&["csv"]), session(&["csv"])], 2);
    let wanted = [("", vec![1]), ("csv", vec![0, 2]), ("git", vec![0])];
    assert_eq!(found, wanted.map(|(name, numbers)| (name.to_owned(), numbers)).into());
}

#[test]
fn a_skill_is_mentioned_by_its_whole_name() {
    assert!(mentions("uses csv.", "csv") && mentions("csv", "csv") && mentions("csv-read and `csv`", "csv"));
    for other in ["csv-read", "mycsv", "csv2", "CSV", ""] {
        assert!(!mentions(other, "csv"), "{other}");
    }
    assert!(!mentions("anything", ""));
}

fn skills() -> Vec<Entry> {
    let config = r#"{"description":"tables","text":"Use Python."}"#.into();
    vec![Entry { id: "csv".into(), kind: EntryKind::Skill, config }]
}

fn decision(action: &str, skill: &str) -> String {
    format!(r#"{{"action":"{action}","skill":"{skill}","description":"when there are tables","text":"Use awk."}}"#)
}

fn skill(id: &str, description: &str, text: &str) -> Option<Wanted> {
    Some(Wanted { id: id.into(), description: description.into(), text: text.into() })
}

#[test]
fn each_action_does_what_it_says() {
    let both = skill("csv", "when there are tables", "Use awk.");
    assert_eq!(wanted(&decision("improve_skill", "csv"), Some("csv"), &skills()), both);
    assert_eq!(wanted(&decision("improve_skill", "git"), Some("csv"), &skills()), both, "only the skill of its group");
    let described = skill("csv", "when there are tables", "Use Python.");
    assert_eq!(wanted(&decision("optimize_description", "csv"), Some("csv"), &skills()), described);
    let created = skill("git", "when there are tables", "Use awk.");
    assert_eq!(wanted(&decision("create_skill", "git"), None, &skills()), created);
    assert_eq!(wanted(&decision("create_skill", "git"), Some("csv"), &skills()), created);
    assert_eq!(wanted(&decision("create_skill", "csv"), None, &skills()), both, "a name that exists is improved");
    let undescribed = decision("improve_skill", "csv").replace("when there are tables", "");
    assert_eq!(wanted(&undescribed, Some("csv"), &skills()), skill("csv", "tables", "Use awk."));
}

#[test]
fn what_cannot_be_read_or_is_not_offered_changes_nothing() {
    let long = decision("create_skill", "git").replace("Use awk.", &"x".repeat(30_000));
    let same =
        decision("improve_skill", "csv").replace("when there are tables", "tables").replace("Use awk.", "Use Python.");
    for answer in [
        "Skip.",
        "{}",
        &decision("skip", "csv"),
        &decision("remove_skill", "csv"),
        &decision("improve_skill", "git"),
        &decision("optimize_description", "git"),
        &decision("create_skill", "Git"),
        &decision("create_skill", "../git"),
        &decision("create_skill", ""),
        &long,
        &same,
    ] {
        assert_eq!(wanted(answer, None, &skills()), None, "{answer}");
    }
    assert_eq!(merged("No.", "csv", skills().first()), None);
    assert_eq!(merged(r#"{"description":"d","text":"t"}"#, "csv", skills().first()), skill("csv", "d", "t"));
}
