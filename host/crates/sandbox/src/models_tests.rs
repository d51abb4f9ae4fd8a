//! Arguments of model calls are refused before a model sees them, and wrong answers of the host before the guest does.

use super::*;
use crate::call::testing;

struct Probe;

impl Models for Probe {
    fn bindings(&mut self) -> Result<Vec<String>, ModelsError> {
        Ok(vec!["served".into()])
    }
    fn chat(&mut self, binding: &str, requests: Vec<ChatRequest>) -> Result<Vec<Vec<Completion>>, ModelsError> {
        if binding == "lazy" {
            return Ok(vec![]);
        }
        if binding != "served" {
            return Err(ModelsError::UnknownBinding(binding.to_owned()));
        }
        let answer = |request: &ChatRequest| Completion {
            text: request.messages[0].content.clone(),
            finish: Finish::Stop,
            tokens: 1,
            mean_logprob: f64::NAN,
        };
        Ok(requests.iter().map(|request| vec![answer(request); request.sampling.n as usize]).collect())
    }
    fn score(&mut self, _: &str, _: &[Message], answer: &str) -> Result<Vec<f32>, ModelsError> {
        Ok(vec![-0.5; answer.len()])
    }
    fn spent(&mut self) -> Result<Usage, ModelsError> {
        Ok(Usage { calls: 1, ..Usage::default() })
    }
    fn held_out_count(&mut self) -> Result<u32, ModelsError> {
        Ok(3)
    }
    fn held_out_scores(&mut self, binding: &str, _: u32, count: u32) -> Result<Vec<f64>, ModelsError> {
        Ok(vec![if binding == "served" { 0.5 } else { 2.0 }; count as usize])
    }
}

fn state() -> CallState {
    let mut state = testing::state(0, vec![]);
    state.models = ModelsHost { worker: Some(Box::new(Probe)) };
    state
}

fn greedy() -> ChatSampling {
    ChatSampling { temperature: 0.0, top_p: 1.0, tokens_max: 8, stop: vec![], n: 1, seed: None }
}

fn request(content: &str, sampling: ChatSampling) -> ChatRequest {
    ChatRequest { messages: vec![Message { role: "user".into(), content: content.into() }], sampling }
}

#[tokio::test]
async fn answers_come_request_by_request() {
    let mut state = state();
    let twice = request("a", ChatSampling { n: 2, ..greedy() });
    let answers = state.chat("served".into(), vec![twice, request("b", greedy())]).await.expect("answers");
    let texts: Vec<Vec<&str>> =
        answers.iter().map(|drawn| drawn.iter().map(|answer| answer.text.as_str()).collect()).collect();
    assert_eq!(texts, [vec!["a", "a"], vec!["b"]]);
    assert_eq!(state.bindings().await, Ok(vec!["served".into()]));
    assert_eq!(state.score("served".into(), request("q", greedy()).messages, "ab".into()).await, Ok(vec![-0.5; 2]));
    assert_eq!(state.spent().await.expect("usage").calls, 1);
}

#[tokio::test]
async fn arguments_are_refused_by_name() {
    let mut state = state();
    let hi = || vec![request("hi", greedy())];
    assert!(matches!(state.chat("../x".into(), hi()).await, Err(ModelsError::UnknownBinding(_))));
    assert!(matches!(state.chat("other".into(), hi()).await, Err(ModelsError::UnknownBinding(_))));
    let mut refused = async |requests| match state.chat("served".into(), requests).await {
        Err(ModelsError::Invalid(told)) => told,
        other => panic!("{other:?}"),
    };
    assert!(refused(vec![]).await.starts_with("requests: 0"));
    assert!(refused(vec![request("hi", greedy()); 65]).await.starts_with("requests: 65"));
    let wrong = [
        ("temperature", ChatSampling { temperature: f32::NAN, ..greedy() }),
        ("top-p", ChatSampling { top_p: 0.0, ..greedy() }),
        ("tokens-max", ChatSampling { tokens_max: 0, ..greedy() }),
        ("n", ChatSampling { n: 65, ..greedy() }),
        ("stop", ChatSampling { stop: vec!["x".into(); 17], ..greedy() }),
        ("stop", ChatSampling { stop: vec![String::new()], ..greedy() }),
    ];
    for (name, how) in wrong {
        assert!(refused(vec![request("hi", how)]).await.starts_with(name), "{name}");
    }
    let mut root = request("hi", greedy());
    root.messages[0].role = "root".into();
    assert!(refused(vec![root]).await.contains("role 'root'"));
    assert!(refused(vec![ChatRequest { messages: vec![], sampling: greedy() }]).await.starts_with("messages"));
}

#[tokio::test]
async fn a_missing_answer_is_a_bug_of_the_host() {
    let mut state = state();
    assert!(state.chat("lazy".into(), vec![request("hi", greedy())]).await.is_err());
    assert_eq!(state.cut_off.expect("cut off").kind, FaultKind::HostBug);
}

#[tokio::test]
async fn held_out_ranges_stay_inside_the_tasks() {
    let mut state = state();
    assert_eq!(state.held_out_scores("served".into(), 1, 2).await.expect("scores"), [0.5, 0.5]);
    for (first, count) in [(0, 4), (3, 1), (u32::MAX, 2)] {
        assert!(matches!(state.held_out_scores("served".into(), first, count).await, Err(ModelsError::Invalid(_))));
    }
    assert!(state.held_out_scores("wrong".into(), 0, 1).await.is_err());
    assert_eq!(state.cut_off.expect("cut off").kind, FaultKind::HostBug);
}
