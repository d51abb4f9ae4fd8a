//! The identity of a harness, and the changes that lead from one to another.

use reef_recipe::testing::FakeHost;
use reef_recipe::{Entry, EntryKind, Mutation};
use reef_recipe_meta_harness::population::{Node, Population, applied, canonical, difference, identity};

fn entry(kind: EntryKind, id: &str, config: &str) -> Entry {
    Entry { id: id.into(), kind, config: config.into() }
}

fn tree() -> Vec<Entry> {
    vec![
        entry(EntryKind::Skill, "csv", r#"{"text":"t","description":"d","files":{"b":"1","a":"2"}}"#),
        entry(EntryKind::Rules, "style", r#"{"text":"Be brief."}"#),
    ]
}

#[test]
fn the_canonical_form_knows_no_order_and_no_spaces() {
    let wanted = "rules\tstyle\t{\"text\":\"Be brief.\"}\nskill\tcsv\t{\"description\":\"d\",\"files\":{\"a\":\"2\",\"b\":\"1\"},\"text\":\"t\"}\n";
    assert_eq!(canonical(&tree()), wanted);
    let mut other = tree();
    other.reverse();
    other[1].config = r#"{ "files": {"a":"2", "b":"1"}, "description":"d", "text":"t" }"#.into();
    assert_eq!(identity(&other), identity(&tree()));
    other[0].config = r#"{"text":"Be brief. "}"#.into();
    assert_ne!(identity(&other), identity(&tree()));
}

#[test]
fn the_identity_is_sha_256() {
    assert_eq!(identity(&[]), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_eq!(identity(&tree()).len(), 64);
}

#[test]
fn changes_lead_from_any_tree_to_any_other() {
    let wanted = vec![
        entry(EntryKind::Rules, "style", r#"{"text":"Think."}"#),
        entry(EntryKind::Rules, "new", r#"{"text":"x"}"#),
    ];
    let changes = difference(&tree(), &wanted);
    assert_eq!(changes[0], Mutation::remove(EntryKind::Skill, "csv"));
    assert_eq!(identity(&applied(&tree(), &changes)), identity(&wanted));
    assert!(difference(&tree(), &tree()).is_empty());
}

#[test]
fn a_full_population_gives_up_the_worst_that_nobody_needs() {
    let node = |id: &str, parent: &str, mean: f64| Node {
        id: id.repeat(8),
        parent: parent.repeat(8),
        hypothesis: String::new(),
        parts: Vec::new(),
        number: 0,
        means: Some((mean, 0.0)),
        outcome: String::new(),
    };
    let mut host = FakeHost::default();
    let population = host.call(|| {
        let mut population = Population::default();
        for (id, parent, mean) in [("a", "", 0.0), ("b", "a", 0.1), ("c", "a", 0.3), ("d", "b", 0.2)] {
            population.add(node(id, parent, mean), 3, &"a".repeat(8))?;
        }
        Population::read()
    });
    let population = population.expect("reads");
    // a serves and b is the parent of d.
    assert_eq!(population.nodes.iter().map(|node| &node.id[..1]).collect::<Vec<_>>(), ["a", "b", "d"]);
    assert_eq!(population.named(&"d".repeat(8)).map(|node| node.number), Some(3));
    assert!(population.named("dddd").is_none() && population.named(&"c".repeat(8)).is_none());
}
