//! A routing policy: ordered rules, of which the first that matches a request says which models answer it. The server reads
//! one from a release of the surface router and applies it to every request of the scenario; a request that no rule
//! matches is answered by the model that it names. Rules name models and never each other, so that none can loop.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::Tag;

/// Rules of one policy; every request is compared with each.
const RULES_MAX: usize = 64;
/// Models of one rule: the first, and those that answer when it fails.
const MODELS_MAX: usize = 3;
/// Tags that one rule looks at.
const TAGS_MAX: usize = 8;
/// Bytes of a model's name and of a tag's value.
const TEXT_BYTES_MAX: usize = 256;

/// Rules in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoutingPolicy {
    /// The first that matches decides.
    pub rules: Vec<RoutingRule>,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoutingRule {
    /// Which requests it is about; all of them without a condition.
    #[serde(default)]
    pub when: RouteCondition,
    /// The model that answers, then those that answer when the one before failed without having said anything.
    pub models: Vec<String>,
}

/// All of it must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouteCondition {
    /// Tags of the request, with these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<Tag, String>,
    /// Bytes of all texts of the prompt, at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_bytes_min: Option<u64>,
    /// The same, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_bytes_max: Option<u64>,
    /// The request offers tools, or offers none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<bool>,
    /// The model that the request names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// What rules see of a request.
#[derive(Debug, Clone, Copy)]
pub struct RouteFacts<'a> {
    /// Its tags.
    pub tags: &'a BTreeMap<Tag, String>,
    /// Bytes of all texts of its prompt.
    pub prompt_bytes: u64,
    /// It offers tools.
    pub tools: bool,
    /// The model that it names.
    pub model: &'a str,
}

impl RoutingPolicy {
    /// The number of the rule that decides on a request, from 1, and the rule; none = the model that it names answers.
    pub fn route(&self, facts: RouteFacts<'_>) -> Option<(usize, &RoutingRule)> {
        (1..).zip(&self.rules).find(|(_, rule)| rule.when.holds(facts))
    }

    /// What is wrong with it, a sentence for each; `may_use`: does the scenario have this model?
    pub fn problems(&self, may_use: impl Fn(&str) -> bool) -> Vec<String> {
        if self.rules.len() > RULES_MAX {
            return vec![format!("the policy has {} rules; the limit is {RULES_MAX}", self.rules.len())];
        }
        let mut problems = Vec::new();
        let mut earlier: Vec<&RouteCondition> = Vec::new();
        for (number, rule) in (1..).zip(&self.rules) {
            let own = rule.problems(&may_use);
            problems.extend(own.into_iter().map(|problem| format!("rule {number}: {problem}")));
            let covering = (1..).zip(&earlier).find(|(_, before)| before.covers(&rule.when));
            if let Some((before, _)) = covering {
                problems.push(format!("rule {number} never decides: rule {before} matches all that it matches"));
            }
            earlier.push(&rule.when);
        }
        problems
    }
}

impl RoutingRule {
    fn problems(&self, may_use: &impl Fn(&str) -> bool) -> Vec<String> {
        let mut problems = Vec::new();
        if self.models.is_empty() || self.models.len() > MODELS_MAX {
            problems.push(format!("it names {} models; name 1 to {MODELS_MAX}", self.models.len()));
        }
        if self.models.iter().collect::<BTreeSet<_>>().len() < self.models.len() {
            problems.push("it names a model twice".to_owned());
        }
        for model in self.models.iter().chain(&self.when.model).filter(|model| !may_use(model)) {
            let shown: String = model.escape_default().take(TEXT_BYTES_MAX).collect();
            problems.push(format!("this scenario has no model '{shown}'; GET /v1/models lists those there are"));
        }
        let RouteCondition { tags, prompt_bytes_min: least, prompt_bytes_max: most, .. } = &self.when;
        if tags.len() > TAGS_MAX || tags.values().any(|value| value.len() > TEXT_BYTES_MAX) {
            problems.push(format!("at most {TAGS_MAX} tags, each with a value of at most {TEXT_BYTES_MAX} bytes"));
        }
        if let (Some(least), Some(most)) = (least, most)
            && least > most
        {
            problems.push(format!("no prompt has at least {least} and at most {most} bytes"));
        }
        problems
    }
}

impl RouteCondition {
    fn holds(&self, facts: RouteFacts<'_>) -> bool {
        self.tags.iter().all(|(tag, value)| facts.tags.get(tag) == Some(value))
            && self.prompt_bytes_min.is_none_or(|least| facts.prompt_bytes >= least)
            && self.prompt_bytes_max.is_none_or(|most| facts.prompt_bytes <= most)
            && self.tools.is_none_or(|tools| facts.tools == tools)
            && self.model.as_deref().is_none_or(|model| facts.model == model)
    }

    /// Does it hold wherever the other does?
    fn covers(&self, other: &Self) -> bool {
        let least = |condition: &Self| condition.prompt_bytes_min.unwrap_or(0);
        let most = |condition: &Self| condition.prompt_bytes_max.unwrap_or(u64::MAX);
        self.tags.iter().all(|(tag, value)| other.tags.get(tag) == Some(value))
            && least(self) <= least(other)
            && most(self) >= most(other)
            && self.tools.is_none_or(|tools| other.tools == Some(tools))
            && self.model.as_ref().is_none_or(|model| other.model.as_ref() == Some(model))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> RoutingPolicy {
        serde_json::from_str(text).expect("a policy")
    }

    fn tags(pairs: &[(&str, &str)]) -> BTreeMap<Tag, String> {
        pairs.iter().map(|(tag, value)| (Tag::parse(*tag).expect("a tag"), (*value).to_owned())).collect()
    }

    fn known(model: &str) -> bool {
        ["student", "teacher", "other", "more"].contains(&model)
    }

    #[test]
    fn the_first_rule_that_matches_decides_and_without_one_nothing_changes() {
        let policy = policy(
            r#"{"rules": [
                {"when": {"tags": {"kind": "hard", "user": "u"}}, "models": ["teacher"]},
                {"when": {"tools": true, "prompt_bytes_max": 10}, "models": ["student", "teacher"]},
                {"when": {"prompt_bytes_min": 11, "model": "student"}, "models": ["other"]}]}"#,
        );
        assert_eq!(policy.problems(known), Vec::<String>::new());
        let (both, one) = (tags(&[("kind", "hard"), ("user", "u")]), tags(&[("kind", "hard")]));
        let cases = [
            (&both, 5, true, "student", Some(1)),
            (&one, 10, true, "teacher", Some(2)),
            (&one, 11, true, "student", Some(3)),
            (&one, 11, true, "teacher", None),
            (&one, 10, false, "student", None),
        ];
        for (tags, prompt_bytes, tools, model, decides) in cases {
            let facts = RouteFacts { tags, prompt_bytes, tools, model };
            assert_eq!(policy.route(facts).map(|(number, _)| number), decides, "{facts:?}");
        }
        assert_eq!(
            RoutingPolicy::default().route(RouteFacts { tags: &one, prompt_bytes: 0, tools: false, model: "" }),
            None
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_number_of_its_rule() {
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        let cases = [
            (r#"{"rules": [{"models": []}]}"#.to_owned(), "rule 1: it names 0 models"),
            (r#"{"rules": [{"models": ["student", "teacher", "other", "more"]}]}"#.to_owned(), "it names 4 models"),
            (r#"{"rules": [{"models": ["student", "student"]}]}"#.to_owned(), "a model twice"),
            (r#"{"rules": [{"models": ["nobody"]}]}"#.to_owned(), "no model 'nobody'"),
            (r#"{"rules": [{"when": {"model": "nobody"}, "models": ["student"]}]}"#.to_owned(), "no model 'nobody'"),
            (r#"{"rules": [{"when": {"prompt_bytes_min": 2, "prompt_bytes_max": 1}, "models": ["student"]}]}"#.to_owned(), "no prompt"),
            (format!(r#"{{"rules": [{{"when": {{"tags": {{"kind": "{long}"}}}}, "models": ["student"]}}]}}"#), "tags"),
            (
                r#"{"rules": [{"when": {"tools": true}, "models": ["student"]}, {"when": {"tools": true, "model": "other"}, "models": ["teacher"]}]}"#.to_owned(),
                "rule 2 never decides: rule 1 matches all",
            ),
        ];
        for (text, told) in cases {
            let problems = policy(&text).problems(known).join("; ");
            assert!(problems.contains(told), "{text}: {problems}");
        }
        let rule = RoutingRule { when: RouteCondition::default(), models: vec!["student".to_owned()] };
        let many = RoutingPolicy { rules: vec![rule; RULES_MAX + 1] };
        assert!(many.problems(known).join("").contains("65 rules"));
        assert!(
            serde_json::from_str::<RoutingPolicy>(r#"{"rules": [], "then": 1}"#).is_err(),
            "unknown keys are refused"
        );
    }

    #[test]
    fn a_rule_that_covers_another_matches_all_that_it_matches() {
        let conditions = [
            r#"{}"#,
            r#"{"tools": true}"#,
            r#"{"prompt_bytes_max": 10}"#,
            r#"{"prompt_bytes_min": 5, "prompt_bytes_max": 8}"#,
            r#"{"tags": {"kind": "hard"}}"#,
            r#"{"model": "student", "tools": false}"#,
        ]
        .map(|text| serde_json::from_str::<RouteCondition>(text).expect("a condition"));
        let (none, hard) = (tags(&[]), tags(&[("kind", "hard")]));
        for (a, b) in conditions.iter().flat_map(|a| conditions.iter().map(move |b| (a, b))) {
            for (tags, bytes) in [(&none, 0), (&none, 6), (&hard, 9), (&hard, 20)] {
                for (tools, model) in [(true, "student"), (false, "student"), (false, "teacher")] {
                    let facts = RouteFacts { tags, prompt_bytes: bytes, tools, model };
                    assert!(!a.covers(b) || !b.holds(facts) || a.holds(facts), "{a:?} {b:?} {facts:?}");
                }
            }
        }
        assert!(conditions.iter().all(|condition| conditions[0].covers(condition)));
    }
}
