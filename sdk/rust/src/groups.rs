//! Whole groups: several answers to one prompt, sampled by one release, that are only learned from together.
//! Groups are formed of equal prompts, or as the reports say. What belongs to no group that can become whole is
//! retired with a reason; what may still become whole stays in the pool until it is stale or there is no room.

use alloc::borrow::ToOwned;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::{Failure, Field, Group, Key, Manifest, Pool, Result, Retirement, Sample, Selection};

/// Configuration key: what makes a group.
pub const GROUP_BY: Key<&'static str> =
    Key::text("group_by", "prompt", "prompt = equal prompts of one release; report = step and group of the report");

/// Report field: the grid that the group belongs to.
pub const STEP: Field<u32> = Field::new("step", "number of the grid of groups, from 0; 0 if absent");
/// Report field: the group in its grid.
pub const GROUP: Field<u32> = Field::new("group", "number of the group in its grid, from 0");
/// Report field: the slot in its group.
pub const ROLLOUT: Field<u32> = Field::new("rollout", "number of the answer in its group, from 0");

/// Samples of one selection that groups are formed of; as many as the largest step.
const WINDOW: usize = 512;
/// The same where reports are read: three fields each, of the 1,000 calls that the host answers.
const WINDOW_OF_REPORTS: usize = 320;

impl Manifest {
    /// Declares [`GROUP_BY`] and the report fields that groups are formed by.
    #[must_use]
    pub fn grouped(self) -> Self {
        self.key(GROUP_BY).field(STEP).field(GROUP).field(ROLLOUT)
    }
}

/// The shape of a step: `groups` whole groups of `group_size` samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Groups of a step.
    pub groups: u32,
    /// Samples of a group.
    pub group_size: u32,
}

impl Grid {
    /// Reads both keys.
    ///
    /// # Errors
    /// `invalid-config` of a key, or of `groups` when a step would hold more than `samples_max`.
    pub fn read(groups: &Key<u32>, group_size: &Key<u32>, samples_max: u32) -> Result<Self> {
        let grid = Self { groups: groups.get()?, group_size: group_size.get()? };
        match grid.groups.checked_mul(grid.group_size) {
            Some(samples) if samples <= samples_max => Ok(grid),
            _ => Err(Failure::config(
                groups.name,
                &format!("{} times {} {} is more than {samples_max}", grid.groups, grid.group_size, group_size.name),
            )),
        }
    }

    /// The first `groups` whole groups as a batch, or to wait for them. Groups are formed as [`GROUP_BY`] says, of the
    /// first samples of the pool; when those are no batch and leave no room, the oldest incomplete group goes.
    ///
    /// # Errors
    /// The host's refusal, or `invalid-config` of [`GROUP_BY`].
    pub fn select(&self, pool: &Pool) -> Result<Selection> {
        let by = GROUP_BY.get()?;
        let window = match by.as_str() {
            "prompt" => WINDOW,
            "report" => WINDOW_OF_REPORTS,
            other => return Err(Failure::config(GROUP_BY.name, &format!("'{other}' is neither prompt nor report"))),
        };
        if self.groups as usize * self.group_size as usize > window {
            let problem = format!("{by} forms groups of {window} samples and a step has more");
            return Err(Failure::config(GROUP_BY.name, &problem));
        }
        let seen = Pool::from(pool.handles().get(..window).unwrap_or(pool.handles()).to_vec());
        let Groups { mut whole, mut incomplete, mut retired } = match by.as_str() {
            "prompt" => Groups::by_prompt(&seen, self.group_size)?,
            _ => Groups::by_report(&seen, self.group_size)?,
        };
        let (wanted, found) = (self.groups as usize, whole.len());
        if wanted > 0 && found >= wanted {
            whole.truncate(wanted);
            return Ok(Selection::train_groups(whole).retire(retired));
        }
        if seen.len() == window && retired.is_empty() {
            retired.extend(oldest(&seen, &mut incomplete));
        }
        let told = format!("{found} of {wanted} whole groups of {}; {} incomplete", self.group_size, incomplete.len());
        Ok(Selection::wait(told).retire(retired))
    }

    /// A column of a batch, group by group.
    ///
    /// # Errors
    /// `other` when the batch is not of whole groups.
    pub fn cut<'a, T>(&self, column: &'a [T]) -> Result<impl Iterator<Item = &'a [T]> + use<'a, T>> {
        let groups = column.chunks_exact(self.group_size.max(1) as usize);
        if !groups.remainder().is_empty() {
            return Err(Failure::other(format!("a batch of {} is not of groups of {}", column.len(), self.group_size)));
        }
        Ok(groups)
    }
}

/// Takes the group with the oldest sample out of those that are incomplete.
fn oldest(seen: &Pool, incomplete: &mut Vec<Group>) -> Vec<Retirement> {
    let holds = |sample: &Sample| incomplete.iter().position(|group| group.slots.contains(sample));
    let Some(at) = seen.handles().iter().find_map(holds) else { return Vec::new() };
    let Group { name, slots } = incomplete.swap_remove(at);
    let reason = format!("{name} is the oldest incomplete group, and the pool has no room");
    slots.into_iter().map(|sample| Retirement::new(sample, reason.as_str())).collect()
}

/// The groups of a pool.
#[derive(Debug, Default)]
struct Groups {
    whole: Vec<Group>,
    incomplete: Vec<Group>,
    retired: Vec<Retirement>,
}

/// A sample in a slot of a group.
struct Member {
    sample: Sample,
    prompt: String,
    release: String,
}

impl Groups {
    /// In the order in which they became whole. More answers to a prompt than a group holds begin another one.
    fn by_prompt(pool: &Pool, size: u32) -> Result<Self> {
        let mut groups = Self::default();
        let mut open: BTreeMap<String, (u32, Vec<Sample>)> = BTreeMap::new();
        for ((&sample, prompt), release) in pool.handles().iter().zip(pool.prompt_keys()?).zip(pool.releases()?) {
            let key = format!("{prompt}:{release}");
            let (number, slots) = open.entry(key.clone()).or_default();
            slots.push(sample);
            if slots.len() == size as usize {
                groups.whole.push(Group { name: format!("{key}:{number}"), slots: core::mem::take(slots) });
                *number += 1;
            }
        }
        let open = open.into_iter().filter(|(_, (_, slots))| !slots.is_empty());
        groups.incomplete =
            open.map(|(key, (number, slots))| Group { name: format!("{key}:{number}"), slots }).collect();
        Ok(groups)
    }

    /// In the order of step and group, slots in the order of rollouts.
    fn by_report(pool: &Pool, size: u32) -> Result<Self> {
        let mut groups = Self::default();
        let mut members: BTreeMap<(u32, u32), BTreeMap<u32, Member>> = BTreeMap::new();
        for ((&sample, prompt), release) in pool.handles().iter().zip(pool.prompt_keys()?).zip(pool.releases()?) {
            let (step, place) = (STEP.of(sample)?.unwrap_or(0), (GROUP.of(sample)?, ROLLOUT.of(sample)?));
            let objection = match place {
                (Some(_), Some(rollout)) if rollout >= size => {
                    Some(format!("rollout {rollout} of a group of {size}; they count from 0"))
                }
                (Some(group), Some(rollout)) => {
                    let slots = members.entry((step, group)).or_default();
                    let taken = slots.contains_key(&rollout);
                    slots.entry(rollout).or_insert(Member { sample, prompt, release });
                    taken.then(|| format!("rollout {rollout} of step-{step}-group-{group} is there already"))
                }
                _ => Some("its report has no group or no rollout".to_owned()),
            };
            groups.retired.extend(objection.map(|reason| Retirement::new(sample, reason)));
        }
        for ((step, group), slots) in members {
            groups.place(format!("step-{step}-group-{group}"), slots, size);
        }
        Ok(groups)
    }

    fn place(&mut self, name: String, members: BTreeMap<u32, Member>, size: u32) {
        let distinct = |of: fn(&Member) -> &str| members.values().map(of).collect::<BTreeSet<_>>().len();
        let (prompts, releases) = (distinct(|member| &member.prompt), distinct(|member| &member.release));
        let slots: Vec<Sample> = members.values().map(|member| member.sample).collect();
        let mut retire = |reason: String| {
            self.retired.extend(slots.iter().map(|&sample| Retirement::new(sample, reason.as_str())));
        };
        if prompts > 1 {
            retire(format!("{name} has {prompts} different prompts"));
        } else if releases > 1 {
            retire(format!("{name} was sampled by {releases} releases"));
        } else if slots.len() == size as usize {
            self.whole.push(Group { name, slots });
        } else {
            self.incomplete.push(Group { name, slots });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Choice;
    use crate::testing::{FakeHost, FakeSample};
    use alloc::vec;

    fn select(groups: u32, by: &str, samples: impl IntoIterator<Item = FakeSample>) -> Selection {
        let host = FakeHost::default().config("group_by", &crate::json::quoted(by));
        let mut host = samples.into_iter().fold(host, FakeHost::sample);
        let pool = host.pool();
        host.call(|| Grid { groups, group_size: 2 }.select(&pool)).expect("selects")
    }

    fn at(step: u32, group: u32, rollout: u32) -> FakeSample {
        let json = |number: u32| number.to_string();
        FakeSample::scored(1.0).field("step", &json(step)).field("group", &json(group)).field("rollout", &json(rollout))
    }

    fn of(prompt: &str, lag: u32) -> FakeSample {
        FakeSample::scored(1.0).prompt(prompt).lag(lag)
    }

    fn groups(selection: &Selection) -> &[Group] {
        let Choice::TrainGroups(groups) = &selection.choice else { panic!("{selection:?}") };
        groups
    }

    fn slots(selection: &Selection) -> Vec<Vec<Sample>> {
        groups(selection).iter().map(|group| group.slots.clone()).collect()
    }

    fn reasons(selection: &Selection) -> Vec<(Sample, &str)> {
        selection.retire.iter().map(|gone| (gone.sample, gone.reason.as_str())).collect()
    }

    #[test]
    fn equal_prompts_of_one_release_make_groups_in_the_order_they_become_whole() {
        let pool = [of("a", 0), of("b", 0), of("b", 0), of("a", 1), of("a", 0), of("b", 0), of("b", 0)];
        let selection = select(3, "prompt", pool);
        assert_eq!(slots(&selection), [vec![101, 102], vec![100, 104], vec![105, 106]]);
        let names: BTreeSet<_> = groups(&selection).iter().map(|group| group.name.as_str()).collect();
        assert_eq!((names.len(), selection.retire.len()), (3, 0));
    }

    #[test]
    fn reports_place_answers_in_slots_whatever_their_order() {
        let selection = select(2, "report", [at(1, 0, 1), at(0, 1, 0), at(1, 0, 0), at(0, 1, 1), at(0, 0, 0)]);
        assert_eq!(slots(&selection), [vec![101, 103], vec![102, 100]]);
        assert_eq!(groups(&selection)[0].name, "step-0-group-1");
    }

    #[test]
    fn what_belongs_to_no_group_is_retired_with_the_reason() {
        let selection = select(1, "report", [at(0, 0, 0), at(0, 0, 0), at(0, 0, 2), FakeSample::scored(1.0)]);
        let wanted = [
            (101, "rollout 0 of step-0-group-0 is there already"),
            (102, "rollout 2 of a group of 2; they count from 0"),
            (103, "its report has no group or no rollout"),
        ];
        assert_eq!(reasons(&selection), wanted);
        assert_eq!(selection.choice, Choice::Wait("0 of 1 whole groups of 2; 1 incomplete".into()));
    }

    #[test]
    fn a_group_of_two_prompts_or_two_releases_is_retired_as_a_whole() {
        let pool = [at(0, 0, 0), at(0, 0, 1).prompt("other"), at(0, 1, 0), at(0, 1, 1).lag(1)];
        let wanted = [
            (100, "step-0-group-0 has 2 different prompts"),
            (101, "step-0-group-0 has 2 different prompts"),
            (102, "step-0-group-1 was sampled by 2 releases"),
            (103, "step-0-group-1 was sampled by 2 releases"),
        ];
        assert_eq!(reasons(&select(1, "report", pool)), wanted);
    }

    #[test]
    fn the_barrier_counts_whole_groups_and_tells_the_rest() {
        let five = || [at(0, 0, 0), at(0, 0, 1), at(0, 1, 0), at(0, 1, 1), at(0, 2, 0)];
        assert_eq!(groups(&select(1, "report", five())).len(), 1);
        let waits = select(3, "report", five()).choice;
        assert_eq!(waits, Choice::Wait("2 of 3 whole groups of 2; 1 incomplete".into()));
    }

    #[test]
    fn a_pool_full_of_incomplete_groups_gives_up_the_oldest() {
        let alone = |index: usize| of(&format!("p{index:04}"), 0);
        // The oldest has the last name, so that names do not decide.
        let pool = |count: usize| core::iter::once(of("z", 0)).chain((1..count).map(alone));
        assert!(select(1, "prompt", pool(WINDOW - 1)).retire.is_empty());
        let full = select(1, "prompt", pool(WINDOW));
        let [gone] = full.retire.as_slice() else { panic!("{full:?}") };
        assert_eq!(gone.sample, 100);
        assert!(gone.reason.contains("the oldest incomplete group"), "{}", gone.reason);
        assert!(matches!(full.choice, Choice::Wait(told) if told.ends_with("511 incomplete")));
        // A batch is not held up by them.
        let with_batch = core::iter::once(alone(1)).chain(pool(WINDOW - 1));
        assert_eq!(slots(&select(1, "prompt", with_batch)), [vec![100, 102]]);
    }

    #[test]
    fn a_batch_is_cut_into_its_groups_and_a_rest_is_refused() {
        let grid = Grid { groups: 2, group_size: 2 };
        let cut: Vec<_> = grid.cut(&[1, 2, 3, 4]).expect("whole").collect();
        assert_eq!(cut, [[1, 2], [3, 4]]);
        assert!(grid.cut(&[1, 2, 3]).is_err());
    }

    #[test]
    fn a_grid_over_the_limit_names_its_keys() {
        let (groups, size) = (Key::count("groups", 3, "groups"), Key::count("size", 4, "samples"));
        let mut host = FakeHost::default();
        assert_eq!(host.call(|| Grid::read(&groups, &size, 12)), Ok(Grid { groups: 3, group_size: 4 }));
        let failure = host.call(|| Grid::read(&groups, &size, 11)).expect_err("too many");
        assert_eq!(failure, Failure::InvalidConfig("groups: 3 times 4 size is more than 11".into()));
    }

    #[test]
    fn ways_to_group_that_are_unknown_or_too_narrow_name_the_key() {
        let failure = |by: &str| {
            let mut host = FakeHost::default().config("group_by", &crate::json::quoted(by));
            host.call(|| Grid { groups: 161, group_size: 2 }.select(&Pool::default())).expect_err(by)
        };
        let told = "group_by: 'session' is neither prompt nor report";
        assert_eq!(failure("session"), Failure::InvalidConfig(told.into()));
        let told = "group_by: report forms groups of 320 samples and a step has more";
        assert_eq!(failure("report"), Failure::InvalidConfig(told.into()));
    }
}
