//! Tests of process groups: a group ends with its owner, however the owner ends, and reports how its members ended. The members
//! are shell commands. One of them ignores SIGTERM, so that only SIGKILL ends it.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use testbed::ProcessGroup;

const PATIENCE: Duration = Duration::from_secs(10);

/// This variable is set for a second process of this test program. The second process owns a group, and the test kills this
/// process.
const OWNER_FOLDER: &str = "TESTBED_TEST_OWNER_FOLDER";

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// A group with one ordinary member and one member that ignores SIGTERM.
fn group(folder: &Path) -> ProcessGroup {
    let group = ProcessGroup::start(folder).unwrap();
    group.spawn("ordinary", shell("exec sleep 600")).unwrap();
    group
        .spawn(
            "stubborn",
            shell("trap '' TERM; echo ready; while :; do sleep 1; done"),
        )
        .unwrap();
    wait_until("the stubborn member's trap", || {
        fs::read_to_string(group.log("stubborn")).is_ok_and(|log| log.contains("ready"))
    });
    group
}

/// The number of processes in a process group, without zombies.
fn living(group: u32) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let stats =
        processes.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
    stats
        .filter(|stat| {
            // The fields after the program's name, which is in parentheses: state, parent, process group.
            let fields: Vec<&str> = stat
                .rsplit(')')
                .next()
                .unwrap()
                .split_whitespace()
                .collect();
            fields[0] != "Z" && fields[2] == group.to_string()
        })
        .count()
}

#[track_caller]
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for the end of all members. Processes that are no children of this process, such as the children of a shell, need a
/// moment until they are gone.
#[track_caller]
fn assert_ended(group: u32) {
    wait_until("the end of the members", || living(group) == 0);
}

#[test]
fn dropping_a_group_ends_its_members_and_removes_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let group = group(folder.path());
    let id = group.id();
    assert!(living(id) >= 3, "the anchor and two members");
    group.check().unwrap();
    drop(group);
    assert_ended(id);
    assert!(!folder.path().exists());
}

#[test]
fn a_member_that_has_ended_starts_again_as_it_was_started_and_into_the_same_log() {
    let folder = tempfile::tempdir().unwrap();
    let group = ProcessGroup::start(folder.path()).unwrap();
    let mut command = shell("echo \"$WORD\"; exec sleep 600");
    command.env("WORD", "ready");
    group.spawn("member", command).unwrap();
    group.start_again("member").unwrap_err();
    for times in 1..=3 {
        wait_until("another word", || {
            fs::read_to_string(group.log("member")).is_ok_and(|log| log == "ready\n".repeat(times))
        });
        group.kill("member").unwrap();
        assert!(!group.is_running("member").unwrap());
        group.start_again("member").unwrap();
        assert!(group.is_running("member").unwrap());
        group.check().unwrap();
    }
}

#[test]
fn a_panic_of_the_owner_ends_the_group() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let owner = std::thread::spawn(move || {
        let group = group(&path);
        std::panic::panic_any(group.id());
    });
    let id = *owner.join().unwrap_err().downcast::<u32>().unwrap();
    assert_ended(id);
    assert!(!folder.path().exists());
}

#[test]
fn killing_the_owner_ends_the_group() {
    let folder = tempfile::tempdir().unwrap();
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "owner_that_is_killed", "--nocapture"])
        .env(OWNER_FOLDER, folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let id: u32 = lines
        .map_while(Result::ok)
        .find_map(|line| line.split("group ").nth(1)?.trim().parse().ok())
        .unwrap();
    assert!(living(id) >= 3);

    owner.kill().unwrap();
    owner.wait().unwrap();
    assert_ended(id);
    wait_until("the end of the folder", || !folder.path().exists());
}

/// Not a test by itself: test `killing_the_owner_ends_the_group` starts this function in another process and kills that
/// process.
#[test]
fn owner_that_is_killed() {
    let Some(folder) = std::env::var_os(OWNER_FOLDER) else {
        return;
    };
    let group = group(Path::new(&folder));
    #[allow(clippy::print_stdout)]
    {
        println!("group {}", group.id());
    }
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn killing_the_guardian_does_not_keep_the_members() {
    let folder = tempfile::tempdir().unwrap();
    let group = group(folder.path());
    let (id, guardian) = (group.id(), group.guardian());
    let killed = shell(&format!("kill -KILL {guardian}")).status().unwrap();
    assert!(killed.success());
    drop(group);
    assert_ended(id);
    assert!(!folder.path().exists());
}

#[tokio::test]
async fn a_member_that_ends_by_itself_is_noticed_with_the_end_of_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let group = ProcessGroup::start(folder.path()).unwrap();
    group
        .spawn("brief", shell("echo the reason; exit 3"))
        .unwrap();
    wait_until("its end", || !group.is_running("brief").unwrap());

    let error = group.check().unwrap_err().to_string();
    assert!(
        error.contains("brief") && error.contains("exit status: 3"),
        "{error}"
    );
    assert!(error.contains("the reason"), "{error}");
    let error = group.stop().await.unwrap_err().to_string();
    assert!(error.contains("brief"), "{error}");
}

#[tokio::test]
async fn members_can_be_ended_and_started_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let group = ProcessGroup::start(folder.path()).unwrap();
    let polite = || shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done");
    group.spawn("one", polite()).unwrap();
    let error = group.spawn("one", polite()).unwrap_err().to_string();
    assert!(error.contains("running already"), "{error}");

    wait_until("its trap", || {
        fs::read_to_string(group.log("one"))
            .unwrap()
            .contains("ready")
    });
    assert_eq!(group.terminate("one", PATIENCE).await.unwrap(), Some(7));
    assert!(!group.is_running("one").unwrap());
    group.check().unwrap();

    group.spawn("one", polite()).unwrap();
    assert!(group.is_running("one").unwrap());
    group.kill("one").unwrap();
    group.check().unwrap();
    group.stop().await.unwrap();
    assert!(!folder.path().exists());
}

#[tokio::test]
async fn a_member_can_be_paused_and_its_end_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let group = ProcessGroup::start(folder.path()).unwrap();
    let script = "while [ ! -e end ]; do echo turn; sleep 0.02; done; exit 1";
    let mut command = shell(script);
    command.current_dir(folder.path());
    group.spawn("one", command).unwrap();
    let turns = || fs::read_to_string(group.log("one")).unwrap().len();
    wait_until("its first turns", || turns() > 0);

    group.pause("one").unwrap();
    fs::write(folder.path().join("end"), "").unwrap();
    let error = group
        .ended("one", Duration::from_millis(300))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("still runs"), "{error}");
    group.resume("one").unwrap();
    assert_eq!(group.ended("one", PATIENCE).await.unwrap(), Some(1));
    // The test has waited for the end of this member, so `stop` does not report it.
    group.stop().await.unwrap();
}

#[tokio::test]
async fn a_member_is_started_again_only_after_these_words() {
    let folder = tempfile::tempdir().unwrap();
    let group = ProcessGroup::start(folder.path()).unwrap();
    let script = "[ -e twice ] && exec sleep 600; touch twice; echo lost it; exit 1";
    let mut command = shell(script);
    command.current_dir(folder.path());
    group.spawn("one", command).unwrap();
    wait_until("the end of one", || !group.is_running("one").unwrap());
    assert_eq!(group.start_again_after(&["broke it"]).unwrap(), [""; 0]);
    let error = group.check().unwrap_err();
    assert!(error.to_string().contains("one ended by itself"), "{error}");

    assert_eq!(
        group.start_again_after(&["found it", "lost it"]).unwrap(),
        ["one"]
    );
    assert_eq!(
        group.start_again_after(&["found it", "lost it"]).unwrap(),
        [""; 0]
    );
    assert!(group.is_running("one").unwrap());
    group.stop().await.unwrap();
}
