//! Where the demo shows itself: the terminal at once, the page after each step.
//! The lesson tells it what changed; it knows all courses of the run, so that the page is always whole.

use std::path::PathBuf;

use super::course::Course;
use super::error::DemoError;
use super::page::{self, Heading};
use super::progress::Progress;

/// The page and the terminal.
#[derive(Debug)]
pub struct Board {
    path: PathBuf,
    heading: Heading,
    progress: Progress,
    courses: Vec<Course>,
}

impl Board {
    /// Nothing is written yet.
    pub fn new(path: PathBuf, heading: Heading, progress: Progress, courses: Vec<Course>) -> Self {
        Self { path, heading, progress, courses }
    }

    /// Shows a course in the terminal.
    pub fn show(&self, course: &Course) {
        self.progress.show(course);
    }

    /// Shows a course in the terminal and on the page.
    pub fn publish(&mut self, course: &Course) -> Result<(), DemoError> {
        self.progress.step(course);
        if let Some(known) = self.courses.iter_mut().find(|known| known.scenario == course.scenario) {
            known.clone_from(course);
        }
        self.write()
    }

    /// Ends the terminal's part.
    pub fn finish(&self) {
        self.progress.finish();
    }

    fn write(&self) -> Result<(), DemoError> {
        let failed = |reason| DemoError::Page { path: self.path.clone(), reason };
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        // Whoever reloads the page while it is written sees the old one or the new one, never half of one.
        let unfinished = self.path.with_extension("html.part");
        std::fs::write(&unfinished, page::render(&self.heading, &self.courses)).map_err(failed)?;
        std::fs::rename(&unfinished, &self.path).map_err(failed)
    }
}
