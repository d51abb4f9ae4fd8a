//! Pins, canaries and shadows as requests: what is refused, and with which word.

use serde_json::{Value, json};

use crate::support::shared;

#[tokio::test]
async fn what_cannot_be_rolled_out_is_refused_with_the_field() {
    let caller = shared();
    caller.create(json!({})).await;
    let head = caller.status().await["head"]["release_id"].clone();
    let unknown = "0".repeat(40);
    let cases: [(&str, Value, u16, &str); 10] = [
        ("/canary", json!({ "release_id": unknown, "percent": 5 }), 404, "not_found"),
        ("/canary", json!({ "release_id": head, "percent": 5 }), 409, "conflict"),
        ("/canary", json!({ "release_id": head, "percent": 0 }), 400, "percent"),
        ("/canary", json!({ "release_id": head, "percent": 100 }), 400, "percent"),
        ("/canary", json!({ "release_id": head, "percent": 5, "sticky": "tag" }), 400, "tag"),
        ("/canary", json!({ "release_id": head, "percent": 5, "tag": "user" }), 400, "sticky"),
        ("/canary", json!({ "release_id": head, "percent": 5, "alpha": 2 }), 400, "alpha"),
        ("/canary", json!({ "release_id": head, "percent": 5, "percnt": 5 }), 400, "body"),
        ("/shadow", json!({ "release_id": head, "percent": -1 }), 400, "percent"),
        ("/pin", json!({ "release_id": "../x" }), 400, "body"),
    ];
    for (path, body, status, word) in cases {
        let refused = caller.post(&caller.path(path), body.clone()).await;
        let error = &refused.body["error"];
        assert_eq!(refused.status.as_u16(), status, "{path} {body}: {}", refused.body);
        assert!(error["code"] == json!(word) || error["param"] == json!(word), "{path} {body}: {error}");
    }
    let stopped = caller.send(caller.request(reqwest::Method::DELETE, &caller.path("/rollout"))).await;
    assert_eq!(stopped.status.as_u16(), 409, "none runs");
    let listed = caller.get(&caller.path("/rollouts")).await.ok().body;
    assert_eq!((&listed["running"], &listed["rollouts"]), (&Value::Null, &json!([])));
}

#[tokio::test]
async fn a_pinned_head_can_be_moved_by_hand_and_the_pin_ends() {
    let caller = shared();
    caller.create(json!({})).await;
    let head = caller.status().await["head"]["release_id"].clone();
    caller.post(&caller.path("/pin"), json!({ "release_id": head })).await.ok();
    assert_eq!(caller.status().await["rollout"]["plan"]["kind"], "pin");
    let rolled = caller.post(&caller.path("/rollback"), json!({ "release_id": head })).await.ok().body;
    let listed = caller.get(&caller.path("/rollouts")).await.ok().body;
    assert_eq!((&listed["running"], &listed["rollouts"][0]["end"]["outcome"]), (&Value::Null, &json!("stopped")));
    // The base is not the head any more, and its copy has its content.
    let pinned = caller.post(&caller.path("/pin"), json!({ "release_id": head })).await.ok().body;
    let now = caller.status().await["head"].clone();
    assert!(pinned["release"] == now["release_id"] && now["release_id"] == rolled["release_id"], "{pinned} {now}");
    let again = caller.post(&caller.path("/pin"), json!({ "release_id": head })).await.ok().body;
    assert_eq!(again["number"], pinned["number"], "what is pinned stays pinned");
    assert_eq!(now["content_id"], rolled["content_id"]);
}

#[tokio::test]
async fn nobody_but_the_server_says_which_arm_a_request_is() {
    let caller = shared();
    for tag in ["x-reef-tag-rollout", "x-reef-tag-rollout-unit"] {
        let body = json!({ "model": crate::support::MODEL, "messages": [{ "role": "user", "content": "hi" }] });
        let request = caller.request(reqwest::Method::POST, "/v1/chat/completions").json(&body);
        let refused = caller.send(request.header(tag, "1:candidate")).await;
        assert_eq!((refused.status.as_u16(), &refused.body["error"]["param"]), (400, &json!(tag)));
    }
}
