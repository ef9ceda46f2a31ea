//! Tests of the demand of tasks: tables of examples, and a comparison with a slow, simple computation.

use std::time::{Duration, Instant};

use super::*;
use proptest::prelude::*;

/// A task with this CPU request in thousandths, which waits for the tasks in `after`.
fn task(cpu: i128, after: &[&str]) -> TaskSize {
    TaskSize {
        requests: Some(Amounts {
            milli_cpu: cpu,
            memory: 7 * cpu % 11,
            ..Amounts::default()
        }),
        pods: 1,
        after: after.iter().map(|name| (*name).to_owned()).collect(),
        ..TaskSize::default()
    }
}

fn finally(cpu: i128) -> TaskSize {
    TaskSize {
        finally: true,
        ..task(cpu, &[])
    }
}

fn sizes<const N: usize>(tasks: [(&str, TaskSize); N]) -> Sizes {
    Sizes(tasks.map(|(name, size)| (name.to_owned(), size)).into())
}

#[test]
fn b3_tasks_before_one_that_has_started_have_ended() {
    let all = sizes([
        ("a", task(0, &[])),
        ("b", task(0, &["a"])),
        ("c", task(0, &[])),
        ("f", finally(0)),
    ]);
    let check = |started: &[&str], expect: &[&str]| {
        let started: Vec<_> = started.iter().map(ToString::to_string).collect();
        let before: Vec<_> = all.before(started.iter()).into_iter().collect();
        assert_eq!(before, expect);
    };
    check(&["a", "unknown"], &[]);
    check(&["b"], &["a"]);
    check(&["f"], &["a", "b", "c"]);
}

/// Checks the CPU of `peak` and `need`.
#[track_caller]
fn check(sizes: &Sizes, progress: &[(&str, Progress)], expect: (i128, i128)) {
    let progress = progress.iter().copied().collect();
    let Demand { peak, need } = sizes.demand(&progress, |_, _| true);
    assert_eq!((peak.milli_cpu, need.milli_cpu), expect);
}

use Progress::{Ended, Running};

#[test]
fn b3_the_peak_is_of_tasks_that_can_run_at_the_same_time() {
    let all = sizes([
        ("clone", task(400, &[])),
        ("test", task(300, &["clone"])),
        ("lint", task(200, &["clone"])),
        ("build", task(450, &["test", "lint"])),
        ("report", finally(600)),
    ]);
    check(&all, &[], (600, 600));
    check(&all, &[("report", Ended)], (500, 450));
    check(
        &all,
        &[("clone", Ended), ("report", Ended), ("test", Running)],
        (500, 450),
    );
    check(
        &all,
        &[("clone", Ended), ("test", Ended), ("lint", Running)],
        (600, 600),
    );
    let ended = ["clone", "test", "lint", "build", "report"].map(|name| (name, Ended));
    check(&all, &ended, (0, 0));
    check(&all, &ended[1..], (400, 400));
    let mut running = ended;
    running[4].1 = Running;
    check(&all, &running, (600, 0));
}

#[test]
fn b3_what_an_unfinished_custom_task_keeps_from_starting_does_not_count() {
    let custom = |after: &[&str]| TaskSize {
        custom: true,
        requests: None,
        ..task(0, after)
    };
    let all = sizes([
        ("build", task(100, &[])),
        ("approve", custom(&["build"])),
        ("deploy", task(900, &["approve"])),
        ("verify", task(800, &["deploy"])),
        ("report", finally(700)),
    ]);
    check(&all, &[], (100, 100));
    check(&all, &[("build", Ended)], (0, 0));
    check(&all, &[("build", Ended), ("approve", Running)], (0, 0));
    check(&all, &[("build", Ended), ("approve", Ended)], (900, 900));
    // `deploy` runs although `approve` has not ended. It counts, because it runs.
    check(
        &all,
        &[("approve", Running), ("deploy", Running)],
        (1000, 100),
    );
}

#[test]
fn b3_the_order_leads_through_tasks_of_other_groups() {
    let mut all = sizes([
        ("a", task(100, &[])),
        ("between", task(900, &["a"])),
        ("b", task(200, &["between"])),
    ]);
    let demand = |all: &Sizes| {
        all.demand(&BTreeMap::new(), |name, _| name != "between")
            .peak
            .milli_cpu
    };
    assert_eq!(demand(&all), 200);
    all.0.get_mut("b").unwrap().after.clear();
    assert_eq!(demand(&all), 300);
}

#[test]
fn b3_three_hundred_tasks_take_no_time() {
    let named = |index: usize| format!("task-{index:03}");
    let all = |is_after: &dyn Fn(usize, usize) -> bool| {
        let tasks = (0..300).map(|index| {
            let after = (0..index)
                .filter(|before| is_after(*before, index))
                .map(named);
            let size = TaskSize {
                after: after.collect(),
                ..task(1 + (index as i128 * 37) % 101, &[])
            };
            (named(index), size)
        });
        Sizes(tasks.collect())
    };
    let dense = all(&|before, index| before / 10 < index / 10);
    let sparse = all(&|before, index| (before * 7 + index) % 50 == 0);
    let layers = all(&|before, index| before < 150 && index >= 150);
    let wide = all(&|_, _| false);
    let chain = all(&|before, index| before + 1 == index);
    for (name, all) in [
        ("dense", dense),
        ("sparse", sparse),
        ("layers", layers),
        ("wide", wide),
        ("chain", chain),
    ] {
        let begin = Instant::now();
        let demand = all.demand(&BTreeMap::new(), |_, _| true);
        let took = begin.elapsed();
        assert!(demand.peak.milli_cpu >= demand.need.milli_cpu);
        // The limit allows for a build without optimisation on a busy machine.
        assert!(took < Duration::from_secs(2), "{name}: {took:?}");
    }
}

/// The demand by its definition: the greatest sum of all sets of tasks that may run at the same time.
fn brute_force(sizes: &Sizes, progress: &BTreeMap<&str, Progress>) -> Demand {
    let tasks: Vec<_> = sizes
        .0
        .iter()
        .map(|(name, size)| (name.as_str(), size))
        .collect();
    let waits_for = |later: usize, before: usize| {
        let (name, size) = tasks[later];
        let (other, of_other) = tasks[before];
        name != other && (size.after.contains(other) || (size.finally && !of_other.finally))
    };
    let state = |index: usize| progress.get(tasks[index].0).copied();
    let left: Vec<usize> = (0..tasks.len())
        .filter(|index| state(*index) != Some(Ended))
        .collect();
    let mut behind = vec![vec![false; tasks.len()]; tasks.len()];
    for &a in &left {
        for &b in &left {
            behind[a][b] = waits_for(a, b);
        }
    }
    for &via in &left {
        for &a in &left {
            for &b in &left {
                behind[a][b] |= behind[a][via] && behind[via][b];
            }
        }
    }
    let custom = |index: usize| tasks[index].1.custom;
    let counts: Vec<usize> = (left.iter().copied())
        .filter(|a| !custom(*a))
        .filter(|a| {
            state(*a) == Some(Running) || !left.iter().any(|b| custom(*b) && behind[*a][*b])
        })
        .collect();
    let mut demand = Demand::default();
    for set in 0_u32..1 << counts.len() {
        let chosen: Vec<_> = (counts.iter().enumerate())
            .filter(|(bit, _)| set & (1 << bit) != 0)
            .map(|(_, index)| *index)
            .collect();
        if chosen.iter().any(|a| chosen.iter().any(|b| behind[*a][*b])) {
            continue;
        }
        let sum = |of: &dyn Fn(&Amounts) -> i128| -> i128 {
            let sizes = chosen.iter().map(|index| tasks[*index].1);
            sizes
                .map(|size| size.requests.as_ref().map_or(0, of) * i128::from(size.pods))
                .sum()
        };
        demand.peak.milli_cpu = demand.peak.milli_cpu.max(sum(&|amounts| amounts.milli_cpu));
        demand.peak.memory = demand.peak.memory.max(sum(&|amounts| amounts.memory));
    }
    for index in counts.into_iter().filter(|index| state(*index).is_none()) {
        let Some(requests) = &tasks[index].1.requests else {
            continue;
        };
        demand.need.milli_cpu = demand.need.milli_cpu.max(requests.milli_cpu);
        demand.need.memory = demand.need.memory.max(requests.memory);
    }
    demand
}

type Drawn = (i128, u32, [bool; 8], u8, Option<bool>);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn b3_peak_and_need_are_those_of_the_definition(
        drawn in proptest::collection::vec(
            (0_i128..50, 1_u32..3, any::<[bool; 8]>(), 0_u8..10, any::<Option<bool>>()), 0..9),
        seldom in any::<bool>(),
    ) {
        let names: Vec<_> = (0..drawn.len()).map(|index| format!("t{index}")).collect();
        let size = |(index, (cpu, pods, after, kind, _)): (usize, &Drawn)| {
            let finally = *kind == 1;
            let after = (0..index).filter(|before| after[before % 8] && (!seldom || before % 3 == 0) && !finally);
            let size = TaskSize {
                pods: *pods,
                finally,
                custom: *kind == 2,
                requests: task(*cpu, &[]).requests.filter(|_| ![2, 3].contains(kind)),
                // No task waits for a task of `finally`.
                after: after.filter(|before| drawn[*before].3 != 1).map(|before| names[before].clone()).collect(),
                ..TaskSize::default()
            };
            (names[index].clone(), size)
        };
        let all = Sizes(drawn.iter().enumerate().map(size).collect());
        let mut progress = BTreeMap::new();
        for (name, drawn) in names.iter().zip(&drawn) {
            let state = drawn.4.map(|ended| if ended { Ended } else { Running });
            // As in a real run: a task starts only after all tasks that it waits for have ended.
            let free = all.0[name].after.iter().all(|it| progress.get(it.as_str()) == Some(&Ended));
            if let Some(state) = state.filter(|_| free && !all.0[name].finally) {
                progress.insert(name.as_str(), state);
            }
        }
        let demand = all.demand(&progress, |_, _| true);
        prop_assert_eq!(&demand, &brute_force(&all, &progress));
        prop_assert!(demand.need.milli_cpu <= demand.peak.milli_cpu && demand.need.memory <= demand.peak.memory);
    }
}
