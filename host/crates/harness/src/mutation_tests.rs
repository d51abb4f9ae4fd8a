//! Lists of mutations: all or nothing, undone by their inverse, and independent of order where they touch different
//! entries.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::name::EntryKind;
use crate::samples;

fn mutations(value: Value) -> Vec<Mutation> {
    read_mutations(&value).expect("mutations")
}

proptest! {
    #[test]
    fn applying_and_undoing_gives_the_same_tree((tree, list) in samples::trees_with_mutations()) {
        if let Ok(applied) = tree.apply(&list) {
            let undone = applied.tree.apply(&applied.inverse).expect("the inverse applies");
            prop_assert_eq!(&undone.tree, &tree);
            prop_assert_eq!(undone.tree.to_files(), tree.to_files());
        }
    }

    #[test]
    fn the_order_of_independent_mutations_does_not_matter((tree, list) in samples::trees_with_mutations(), seed in any::<u64>()) {
        let mut independent: Vec<Mutation> = Vec::new();
        for mutation in list {
            if !independent.iter().any(|other| other.name() == mutation.name()) {
                independent.push(mutation);
            }
        }
        let mut other = independent.clone();
        let length = other.len().max(1);
        other.rotate_left(usize::try_from(seed).unwrap_or(0) % length);
        other.reverse();
        let (one, two) = (tree.apply(&independent), tree.apply(&other));
        prop_assert_eq!(one.is_ok(), two.is_ok());
        if let (Ok(one), Ok(two)) = (one, two) {
            prop_assert_eq!(one.tree, two.tree);
        }
    }
}

#[test]
fn a_list_is_applied_whole_or_not_at_all() {
    let tree = samples::every_kind();
    let list = mutations(json!([
        {"op": "create", "kind": "rules", "id": "new", "config": {"text": "a"}},
        {"op": "remove", "kind": "rules", "id": "absent"},
    ]));
    let error = tree.apply(&list).expect_err("refused");
    assert_eq!(
        error.to_string(),
        "mutation 1: rules/absent: there is no such entry; create it, or name one that exists"
    );
    assert!(tree.get(&EntryName::parse(EntryKind::Rules, "new").expect("a name")).is_none());
}

#[test]
fn an_update_merges_and_null_removes() {
    let tree = samples::every_kind();
    let list = mutations(json!([
        {"op": "update", "kind": "skill", "id": "ropes", "config": {"description": "new", "files": {"references/knots.md": null}}},
        {"op": "update", "kind": "hook", "id": "format", "options": {"matcher": null}},
    ]));
    let applied = tree.apply(&list).expect("applies");
    let config = |kind, id| applied.tree.get(&EntryName::parse(kind, id).expect("a name")).expect("there").config();
    assert_eq!(config(EntryKind::Skill, "ropes"), json!({"description": "new", "text": samples::SKILL_TEXT}));
    assert!(config(EntryKind::Hook, "format").get("matcher").is_none());
}

#[test]
fn refusals_name_the_mutation() {
    let tree = samples::every_kind();
    for (list, words) in [
        (
            json!([{"op": "create", "kind": "rules", "id": "style", "config": {"text": ""}}]),
            "the entry exists; update it",
        ),
        (json!([{"op": "update", "kind": "rules", "id": "none", "config": {}}]), "no such entry"),
        (json!([{"op": "put", "kind": "rules", "id": "style", "config": {"text": 1}}]), "mutation 0: rules/style"),
        (json!([{"op": "put", "kind": "rules", "id": "STYLE", "config": {"text": ""}}]), "has that name already"),
    ] {
        let told = tree.apply(&mutations(list)).expect_err("refused").to_string();
        assert!(told.contains(words), "{told}");
    }
    for list in [
        json!({}),
        json!([1]),
        json!([{"op": "burn", "kind": "rules", "id": "a"}]),
        json!([{"op": "remove", "kind": "rules", "id": "../a"}]),
    ] {
        assert!(read_mutations(&list).is_err(), "{list}");
    }
}
