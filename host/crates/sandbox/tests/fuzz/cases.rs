//! Inputs that deserve to be tried every time: shapes at the edges of the decoders, and whatever a target found.

use reef_sandbox::{FaultKind, SandboxError};

use crate::binary::{COMPONENT, leb, section, sections};
use crate::guest::*;
use crate::lifting::{Replayers, good_answers};
use crate::loader;
use crate::manifests;

/// Loading components with sizes, counts and indices at the edges, in every section → a typed error, 60 s.
#[tokio::test]
async fn sections_at_the_edges_are_refused() {
    let sandbox = sandbox(loader::quick());
    for id in 0..=13_u8 {
        for body in [vec![], leb(u64::from(u32::MAX)), vec![0x80; 5], vec![0xff; 11], vec![0; 64], vec![1, 0, 0x7f]] {
            let component = [COMPONENT, &section(id, &body)].concat();
            loader::check(&sandbox, &component).await.unwrap_or_else(|told| panic!("section {id} {body:?}: {told}"));
            let unfinished = [COMPONENT, &[id], &leb(u64::from(u32::MAX)), &body[..]].concat();
            loader::check(&sandbox, &unfinished).await.unwrap_or_else(|told| panic!("section {id} {body:?}: {told}"));
        }
    }
    still_works(&sandbox).await;
}

/// Loading a good component without one of its sections, with one twice, and with all in reverse → typed errors, 60 s.
#[tokio::test]
async fn sections_out_of_order_are_refused() {
    let sandbox = sandbox(loader::quick());
    let good = Guest::good().bytes();
    let parts: Vec<&[u8]> = sections(&good).into_iter().map(|(_, range)| &good[range]).collect();
    let component = |parts: &[&[u8]]| [COMPONENT, &parts.concat()].concat();
    let reversed: Vec<&[u8]> = parts.iter().rev().copied().collect();
    loader::check(&sandbox, &component(&reversed)).await.expect("a typed error");
    for at in 0..parts.len() {
        let mut without = parts.clone();
        without.remove(at);
        loader::check(&sandbox, &component(&without)).await.unwrap_or_else(|told| panic!("without {at}: {told}"));
        let mut twice = parts.clone();
        twice.insert(at, parts[at]);
        loader::check(&sandbox, &component(&twice)).await.unwrap_or_else(|told| panic!("{at} twice: {told}"));
    }
    still_works(&sandbox).await;
}

/// Every good answer of the deciding exports with each of its words replaced by an edge → a value or a typed fault, 60 s.
#[tokio::test]
async fn answers_with_one_word_at_an_edge_obey_the_rules() {
    let sandbox = sandbox(small());
    let replayers = Replayers::load(&sandbox).await;
    for (export, image) in good_answers().into_iter().filter(|(export, _)| *export < 4) {
        for at in (0..image.len() / 4).map(|word| word * 4) {
            for edge in [0, 1, 2, 9, DATA_AT + 1, 0x7fff_ffff, u32::MAX - 3, u32::MAX] {
                let mut changed = image.clone();
                changed[at..at + 4].copy_from_slice(&edge.to_le_bytes());
                let input = [&[export][..], &changed].concat();
                let checked = replayers.check(&input).await;
                checked.unwrap_or_else(|told| panic!("export {export}, {edge} at {at}: {told}"));
            }
        }
    }
    still_works(&sandbox).await;
}

/// Loading a recipe whose manifest is nothing but zeros, nothing but ones, and lies outside → refused by field or
/// InvalidOutput, 10 s each.
#[tokio::test]
async fn manifests_of_nothing_are_refused() {
    let (sandbox, template) = (sandbox(loader::quick()), manifests::template());
    let at = |address: u32| address.to_le_bytes().to_vec();
    for image in [at(DATA_AT + 8), [at(DATA_AT + 8), vec![0xff; 512]].concat(), at(u32::MAX - 7), at(DATA_AT + 1)] {
        manifests::check(&sandbox, &template, &image).await.expect("a typed error");
        let bytes = manifests::patched(&template, &image);
        match sandbox.load(bytes, &reef_sandbox::Grants::all()).await {
            Err(SandboxError::Manifest { .. }) => {}
            Err(SandboxError::Describe(fault)) => assert_eq!(fault.kind, FaultKind::InvalidOutput),
            other => panic!("{other:?}"),
        }
    }
    still_works(&sandbox).await;
}
