//! Which samples make a step: the grid of G groups of R rollouts that the reports describe, whole or not at all.
//! Steps are taken in increasing order. What can never be part of a grid is retired with a reason.

extern crate alloc;

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;

use reef_recipe::prelude::*;

const STEP: Field<u32> = Field::new("step", "step of the search, from 0").required();
const GROUP: Field<u32> = Field::new("group", "group of the step, from 0: rollouts from one parent").required();
const ROLLOUT: Field<u32> = Field::new("rollout", "rollout of the group, from 0").required();
const GROUPS: Field<u32> = Field::new("groups_per_step", "G: groups of a step").required();
const ROLLOUTS: Field<u32> = Field::new("rollouts_per_group", "R: rollouts of a group, at least 2").required();

/// Samples of one grid.
const GRID_MAX: u64 = 4_096;
/// Scores beyond this make advantages and metrics that are no numbers.
const SCORE_ABS_MAX: f64 = 1e12;

/// Declares the fields that a report carries.
pub(crate) fn fields(manifest: Manifest) -> Manifest {
    manifest.field(STEP).field(GROUP).field(ROLLOUT).field(GROUPS).field(ROLLOUTS)
}

/// The size of a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// G.
    pub groups: u32,
    /// R.
    pub rollouts: u32,
}

impl Shape {
    /// The shape in a report; `None` if a field is missing.
    pub(crate) fn of(sample: Sample) -> Result<Option<Self>> {
        Ok(match (GROUPS.of(sample)?, ROLLOUTS.of(sample)?) {
            (Some(groups), Some(rollouts)) => Some(Self { groups, rollouts }),
            _ => None,
        })
    }

    fn size(self) -> u64 {
        u64::from(self.groups) * u64::from(self.rollouts)
    }
}

/// Where a rollout belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Step of the search.
    pub step: u32,
    /// (group, rollout).
    pub slot: (u32, u32),
    /// The grid that the report believes to be part of.
    pub shape: Shape,
}

impl Place {
    /// The place in a report; `None` if a field is missing. Fields after a missing one are not asked for.
    fn of(sample: Sample) -> Result<Option<Self>> {
        let Some(step) = STEP.of(sample)? else { return Ok(None) };
        let (Some(group), Some(rollout)) = (GROUP.of(sample)?, ROLLOUT.of(sample)?) else { return Ok(None) };
        Ok(Shape::of(sample)?.map(|shape| Self { step, slot: (group, rollout), shape }))
    }

    /// Why there is no such place, if so.
    fn objection(&self) -> Option<String> {
        let Self { slot: (group, rollout), shape: shape @ Shape { groups, rollouts }, .. } = *self;
        if group >= groups || rollout >= rollouts {
            Some(format!("its slot ({group}, {rollout}) is outside its grid of {groups} x {rollouts}"))
        } else if rollouts < 2 {
            Some("a group of one rollout has nothing to compare with".to_owned())
        } else if shape.size() > GRID_MAX {
            Some(format!("its grid of {groups} x {rollouts} is larger than {GRID_MAX} rollouts"))
        } else {
            None
        }
    }
}

/// The members of one step so far, by slot.
struct Grid {
    shape: Shape,
    members: BTreeMap<(u32, u32), Sample>,
}

impl Grid {
    fn is_full(&self) -> bool {
        self.members.len() as u64 == self.shape.size()
    }
}

/// The first full grid, in the order (group, rollout); or to wait for it. Where the host stops answering, since the
/// pool has more reports than it allows calls, the selection is from what was read so far.
pub(crate) fn select(pool: &Pool) -> Result<Selection> {
    let (scores, references) = (pool.scores()?, pool.reference_counts()?);
    let (mut grids, mut retired, mut unread) = (BTreeMap::new(), Vec::new(), None);
    for (index, ((&sample, score), references)) in pool.handles().iter().zip(scores).zip(references).enumerate() {
        let place = match Place::of(sample) {
            Ok(place) => place,
            Err(refusal) => {
                unread = Some((index, refusal));
                break;
            }
        };
        let refused = match place {
            None => Some("its report lacks a field of the grid".to_owned()),
            Some(place) => {
                objection(score, references).or_else(|| place.objection()).or_else(|| enter(&mut grids, place, sample))
            }
        };
        retired.extend(refused.map(|reason| Retirement::new(sample, reason)));
    }
    let Some(full) = grids.iter().find(|(_, grid)| grid.is_full()).map(|(&step, _)| step) else {
        let reason = match unread {
            Some((read, refusal)) => partly_read(&grids, read, pool.len(), &refusal),
            None => waiting(&grids),
        };
        return Ok(Selection::wait(reason).retire(retired));
    };
    let Some(grid) = grids.remove(&full) else { return Err(Failure::other("a full grid is gone")) };
    // The search has gone on without them: their step can never be trained in order.
    let late = grids.range(..full).flat_map(|(step, grid)| grid.members.values().map(move |&sample| (step, sample)));
    retired.extend(late.map(|(step, sample)| {
        Retirement::new(sample, format!("step {step} never filled its grid, and step {full} did"))
    }));
    Ok(Selection::train(grid.members.into_values().collect()).retire(retired))
}

/// Puts a sample into its slot, or says why it does not fit.
fn enter(grids: &mut BTreeMap<u32, Grid>, place: Place, sample: Sample) -> Option<String> {
    let Place { step, slot, shape } = place;
    let grid = grids.entry(step).or_insert_with(|| Grid { shape, members: BTreeMap::new() });
    if grid.shape != shape {
        let Shape { groups, rollouts } = grid.shape;
        return Some(format!("step {step} is a grid of {groups} x {rollouts} according to its first report"));
    }
    match grid.members.entry(slot) {
        Entry::Occupied(_) => Some(format!("slot ({}, {}) of step {step} is taken", slot.0, slot.1)),
        Entry::Vacant(free) => {
            free.insert(sample);
            None
        }
    }
}

/// Why a sample can never be used, whatever its place.
fn objection(score: f64, references: u32) -> Option<String> {
    if references != 1 {
        Some(format!("its report references {references} records; ttt-discover learns from exactly one"))
    } else if !score.is_finite() {
        Some("its report has no score".to_owned())
    } else if score.abs() > SCORE_ABS_MAX {
        Some("its score is beyond ±10^12".to_owned())
    } else {
        None
    }
}

fn partly_read(grids: &BTreeMap<u32, Grid>, read: usize, all: usize, refusal: &Failure) -> String {
    let (Failure::Capability(told) | Failure::InvalidConfig(told) | Failure::Other(told)) = refusal;
    log::warn!("only {read} of {all} reports could be read: {told}");
    format!("{}; only {read} of {all} reports were read, raise sandbox.host_calls_max: {told}", waiting(grids))
}

fn waiting(grids: &BTreeMap<u32, Grid>) -> String {
    match grids.first_key_value() {
        None => "no rollout of a grid".to_owned(),
        Some((step, grid)) => format!("step {step}: {} of {} rollouts", grid.members.len(), grid.shape.size()),
    }
}
