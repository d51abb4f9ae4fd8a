//! A server that stops as if the power failed has lost nothing that the store acknowledged.

use std::collections::BTreeSet;

use tokio::task::JoinSet;

use crate::fixture::{Fixture, id, inference, name, tenant};
use crate::place::Place;
use crate::server::Server;

const WRITERS: u32 = 8;
const APPENDS: u32 = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_a_server_that_stops_at_once() {
    let mut server = Server::start();
    let fixture = Fixture::at(Place::on(&server).await).await;
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let store = fixture.store.clone();
        writers.spawn(async move {
            let mut acknowledged = BTreeSet::new();
            for n in 0..APPENDS {
                let receipt = format!("r-{writer}-{n}");
                if store.append_inference(&tenant(), &name(), inference(&receipt, &[1, n], &[2])).await.is_ok() {
                    acknowledged.insert(receipt);
                }
            }
            acknowledged
        });
    }
    fixture.answer(inference("before", &[1], &[2])).await;
    server.crash();
    server.restart();
    let mut acknowledged: BTreeSet<String> = writers.join_all().await.into_iter().flatten().collect();
    acknowledged.insert("before".to_owned());
    fixture.answer(inference("after", &[1], &[2])).await;
    acknowledged.insert("after".to_owned());
    for receipt in &acknowledged {
        let found = fixture.store.record(&tenant(), &name(), &id(receipt)).await.expect("read");
        assert!(found.is_some(), "record {receipt} was acknowledged");
    }
    println!("{} of {} appends were acknowledged around the stop", acknowledged.len(), WRITERS * APPENDS + 2);
    fixture.store.close().await;
}
