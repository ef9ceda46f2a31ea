//! `__complete`: the words that may come next in a command line. kubectl calls it through `kubectl_complete-coschedule`, in every
//! shell for which kubectl has completion (kubectl `pkg/cmd/plugin_completion.go`).

use std::time::Duration;

use clap::{Arg, Command, CommandFactory as _};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use kube::ResourceExt;
use kube::api::ListParams;
use tokio::time::timeout;

use crate::args::{Args, ClusterArgs, KubeconfigArgs};
use crate::cluster::{Cluster, api};
use crate::failure::Failure;

/// Directives of completion in Go's package cobra: the shell completes names of files, or it does not.
const FILES: &str = ":0";
const NO_FILES: &str = ":4";

/// How long the user may wait for the names of PipelineRuns.
const LIMIT: Duration = Duration::from_secs(3);

/// What may come next.
#[derive(Debug, PartialEq)]
enum Next {
    Words(Vec<String>),
    File,
    /// The name of a PipelineRun.
    Run,
}

/// Writes the words that may replace the last one of `words`, and a directive for the shell.
pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    let begun = words.last().map_or("", String::as_str);
    let (candidates, directive) = match next(&Args::command(), words) {
        Next::Words(words) => (words, NO_FILES),
        Next::File => (Vec::new(), FILES),
        Next::Run => (crate::runtime()?.block_on(runs(words)), NO_FILES),
    };
    for word in candidates.iter().filter(|word| word.starts_with(begun)) {
        println!("{word}");
    }
    println!("{directive}");
    Ok(())
}

fn next(program: &Command, words: &[String]) -> Next {
    let Some((begun, before)) = words.split_last() else {
        return Next::Words(Vec::new());
    };
    let mut known = before.iter();
    let Some(command) = known.find_map(|word| program.find_subcommand(word)) else {
        let shown = program.get_subcommands().filter(|it| !it.is_hide_set());
        return Next::Words(shown.map(|it| it.get_name().to_owned()).collect());
    };
    let before: Vec<&String> = known.collect();
    let flag = |word: &str| command.get_arguments().find(|arg| is_flag(arg, word));
    if let Some(arg) = before.last().and_then(|word| flag(word))
        && arg.get_action().takes_values()
    {
        let values = arg.get_possible_values();
        return match arg.get_id().as_str() {
            "filename" | "config" | "certificates" | "kubeconfig" => Next::File,
            _ => Next::Words(values.iter().map(|it| it.get_name().to_owned()).collect()),
        };
    }
    if begun.starts_with('-') {
        let long = command.get_arguments().filter_map(Arg::get_long);
        return Next::Words(long.map(|it| format!("--{it}")).collect());
    }
    match command.get_positionals().any(|arg| arg.get_id() == "name") {
        true => Next::Run,
        false => Next::Words(Vec::new()),
    }
}

fn is_flag(arg: &Arg, word: &str) -> bool {
    let long = arg.get_long().is_some_and(|it| word == format!("--{it}"));
    long || arg.get_short().is_some_and(|it| word == format!("-{it}"))
}

/// The names of the PipelineRuns in the namespace of the command line. Empty if they cannot be read: completion shows no errors.
async fn runs(words: &[String]) -> Vec<String> {
    let value = |flags: [&str; 2]| {
        let mut pairs = words.windows(2);
        let pair = pairs.find(|pair| flags.contains(&pair[0].as_str()))?;
        Some(pair[1].clone())
    };
    let args = ClusterArgs {
        namespace: value(["-n", "--namespace"]),
        kubeconfig: KubeconfigArgs {
            context: value(["--context", "--context"]),
            kubeconfig: value(["--kubeconfig", "--kubeconfig"]).map(Into::into),
        },
    };
    let names = async {
        let Cluster { client, namespace } = Cluster::new(&args).await.ok()?;
        let runs = api::<PipelineRun>(&client, Some(&namespace));
        let runs = runs.list_metadata(&ListParams::default()).await.ok()?;
        Some(runs.items.iter().map(ResourceExt::name_any).collect())
    };
    timeout(LIMIT, names)
        .await
        .ok()
        .flatten()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_of_a_command_line_has_its_words() {
        let next = |line: &str| {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            next(&Args::command(), &words)
        };
        let Next::Words(commands) = next("") else {
            panic!("no words");
        };
        assert!(commands.contains(&"explain".to_owned()), "{commands:?}");
        assert!(!commands.contains(&"__complete".to_owned()), "{commands:?}");
        let Next::Words(flags) = next("status --") else {
            panic!("no words");
        };
        assert!(flags.contains(&"--all-namespaces".to_owned()), "{flags:?}");
        let formats = ["wide", "json", "yaml", "name", "jsonpath="].map(str::to_owned);
        assert_eq!(next("status -o "), Next::Words(formats.into()));
        assert_eq!(next("plan -f "), Next::File);
        assert_eq!(next("explain "), Next::Run);
        assert_eq!(next("explain -n ci b"), Next::Run);
        assert_eq!(next("nodes "), Next::Words(Vec::new()));
    }
}
