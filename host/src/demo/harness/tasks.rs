//! The demo's tasks: small, checked by a line of shell, and done by one command.

use std::fs;
use std::path::Path;

/// One task.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// Its folder.
    pub name: &'static str,
    /// What the agent is told.
    pub instruction: &'static str,
    /// What a program reads on the last line.
    pub answer: &'static str,
    /// The file that the agent finds, and its content.
    pub file: Option<(&'static str, &'static str)>,
    /// What the scripted model runs.
    pub command: &'static str,
}

/// The tasks, by name.
pub const TASKS: [Task; 3] = [
    Task {
        name: "csv",
        instruction: "The file data.csv has a column of numbers. What is their median?\n",
        answer: "30",
        file: Some(("data.csv", "50\n10\n30\n20\n40\n")),
        command: "sort -n data.csv | sed -n 3p",
    },
    Task {
        name: "fib",
        instruction: "What is the 90th Fibonacci number, if the first two are 1 and 1?\n",
        answer: "2880067194370816120",
        file: None,
        command: "a=0 b=1 i=0; while [ $i -lt 90 ]; do c=$((a + b)) a=$b b=$c i=$((i + 1)); done; echo $a",
    },
    Task {
        name: "words",
        instruction: "How many different words are in the file poem.txt?\n",
        answer: "7",
        file: Some(("poem.txt", "the sea the sky\nthe wind and the long grey sea\n")),
        command: "tr -s ' ' '\\n' <poem.txt | sort -u | wc -l",
    },
];

/// Reads the last line of what the agent said that is not empty.
const VERIFY: &str = "last=$(grep -v '^[[:space:]]*$' \"$REEF_OUTPUT\" | tail -n 1)\n[ \"$last\" = 'ANSWER' ]\n";

impl Task {
    /// Is this the answer of somebody who knows how it is read?
    pub fn passes(&self, said: &str) -> bool {
        said.lines().rfind(|line| !line.trim().is_empty()).map(str::trim) == Some(self.answer)
    }

    /// What a person would report of another answer.
    pub fn feedback(&self) -> String {
        "a program reads the last line of the answer and wants nothing but the result there".to_owned()
    }

    /// Puts the agent's file into a folder.
    pub fn lay_out(&self, folder: &Path) -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        match self.file {
            Some((name, text)) => fs::write(folder.join(name), text),
            None => Ok(()),
        }
    }
}

/// Writes the task folders.
pub fn write(folder: &Path) -> std::io::Result<()> {
    for task in TASKS {
        let own = folder.join(task.name);
        task.lay_out(&own.join("files"))?;
        fs::write(own.join("instruction.md"), task.instruction)?;
        fs::write(own.join("verify.sh"), VERIFY.replace("ANSWER", task.answer))?;
        let definition = "verifier.program = [\"sh\", \"{task}/verify.sh\"]\nlimits = { seconds = 60, turns = 10, tokens = 50000 }\n";
        fs::write(own.join("task.toml"), definition)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn every_command_finds_the_answer_and_the_verifier_reads_the_last_line() {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path()).expect("written");
        for task in TASKS {
            let own = folder.path().join(task.name);
            let run = |script: &str| {
                let mut sh = Command::new("sh");
                sh.args(["-c", script]).current_dir(own.join("files")).env("REEF_OUTPUT", own.join("said"));
                sh.output().expect("sh runs")
            };
            let found = String::from_utf8(run(task.command).stdout).expect("text");
            assert_eq!(found.trim(), task.answer, "{}", task.name);
            for (said, good) in
                [(format!("So:\n{}\n\n", task.answer), true), (format!("It is {}.", task.answer), false)]
            {
                fs::write(own.join("said"), &said).expect("written");
                assert_eq!(run("sh ../verify.sh").status.success(), good, "{said}");
                assert_eq!(task.passes(&said), good);
            }
        }
        assert_eq!(reef_episodes::read_tasks(folder.path()).expect("tasks").len(), TASKS.len());
    }
}
