//! How an agent program is started on a rendered release without a shell: what an episode needs. The install script says
//! the same in `sh`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Rendering;
use crate::adapter::{Adapter, Template};

/// What is known only where the program runs.
#[derive(Debug, Clone, Copy)]
pub struct Client<'a> {
    /// The folder of the rendered files.
    pub home: &'a str,
    /// The token of the server.
    pub token: &'a str,
    /// Names the run.
    pub session: &'a str,
    /// The task.
    pub prompt: &'a str,
}

/// A command line of one task without a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// Arguments, without the program.
    pub arguments: Vec<String>,
    /// Variables.
    pub environment: BTreeMap<String, String>,
}

impl Rendering {
    /// The command line of this release for one task.
    pub fn headless(&self, adapter: &Adapter, client: Client<'_>) -> Started {
        let mut values: Map<String, Value> = self.values.clone();
        let Client { home, token, session, prompt } = client;
        for (name, value) in [("home", home), ("token", token), ("session", session), ("prompt", prompt)] {
            values.insert(name.to_owned(), json!(value));
        }
        let run = &adapter.run;
        let filled = |template: &Template| template.fill(&values);
        let mut environment: BTreeMap<String, String> =
            run.environment.iter().map(|(name, value)| (name.clone(), filled(value))).collect();
        environment.insert("REEF_TOKEN".to_owned(), token.to_owned());
        environment.insert("REEF_SESSION".to_owned(), session.to_owned());
        Started { arguments: run.arguments.iter().chain(&run.headless).map(filled).collect(), environment }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::Adapters;
    use crate::{render, samples};

    #[test]
    fn a_task_is_an_argument_whatever_it_says() {
        let adapters = Adapters::embedded().expect("adapters");
        let adapter = adapters.get("pi").expect("an adapter");
        let rendering = render(&samples::every_kind(), adapter, &samples::binding()).expect("renders");
        let client = Client { home: "/h", token: "t", session: "s", prompt: "say {{token}} $X" };
        let started = rendering.headless(adapter, client);
        assert_eq!(started.arguments, ["-p", "say {{token}} $X"]);
        assert_eq!(started.environment["PI_CODING_AGENT_DIR"], "/h/agent");
        assert_eq!(
            (&started.environment["REEF_TOKEN"], &started.environment["REEF_SESSION"]),
            (&"t".into(), &"s".into())
        );
    }

    #[test]
    fn the_native_agent_is_of_this_version() {
        let adapters = Adapters::embedded().expect("adapters");
        let native = adapters.get("native").expect("an adapter");
        assert_eq!(native.install.version().to_string(), env!("CARGO_PKG_VERSION"));
    }
}
