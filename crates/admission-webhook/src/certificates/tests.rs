//! Tests of rotations in a simulated world. Replicas see the Secret and the webhook configuration late, and act on old states. An
//! API server follows the webhook configuration late. At any time, somebody may empty the Secret, clear the `caBundle` or restart
//! a replica. The API server must never reject a replica that it accepted before.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::issue;
use super::material::{Certificate, Material};
use super::state::{self, Serve, Served, Trust, Wanted};

const START: i64 = 1_800_000_000;
const OVERLAP: i64 = 8;
/// The greatest delay of replicas and of the API server, in seconds.
const LATE: usize = 3;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START + second).unwrap()
}

fn wanted() -> Wanted {
    Wanted {
        names: ["127.0.0.1".to_owned(), "webhook.ns.svc".to_owned()].into(),
        lifetime: SignedDuration::from_secs(120),
        overlap: SignedDuration::from_secs(OVERLAP),
    }
}

/// An event that happens in one second of the simulation.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Nothing,
    SecretEmptied,
    BundleWiped,
    Restarted(usize),
    /// For some seconds, the replica sees nothing and does nothing.
    Slow(usize),
}

/// The Secret and the webhook configuration as the API server stores them, each with its version.
#[derive(Clone, Debug, Default)]
struct Stored {
    secret: (u64, Option<Material>),
    bundle: (i64, Vec<Certificate>),
}

#[derive(Debug, Default)]
struct Replica {
    seen: Stored,
    trust: Trust,
    served: Option<Served>,
    slow_for: usize,
    /// True if the replica acted in the last second.
    acted: bool,
    /// The number of seconds since the replica became ready.
    ready_for: usize,
}

#[derive(Debug)]
struct World {
    stored: Stored,
    replicas: Vec<Replica>,
    /// The bundles of the last seconds, newest first. An API server may still use any of them.
    recent: VecDeque<Vec<Certificate>>,
    wiped_for: usize,
    /// All certificates that any replica has served.
    served: Vec<Certificate>,
    /// A readable history, for the messages of failed tests.
    trace: Vec<String>,
}

/// The last two bytes of the certificate. In the messages of failed tests, they identify the certificate.
fn mark(certificate: &Certificate) -> String {
    let end = &certificate.der[certificate.der.len() - 2..];
    end.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn marks<'a>(certificates: impl IntoIterator<Item = &'a Certificate>) -> Vec<String> {
    certificates.into_iter().map(mark).collect()
}

impl World {
    fn new(replicas: usize) -> Self {
        Self {
            stored: Stored::default(),
            replicas: (0..replicas).map(|_| Replica::default()).collect(),
            recent: VecDeque::new(),
            wiped_for: 0,
            served: Vec::new(),
            trace: Vec::new(),
        }
    }

    fn second(&mut self, second: i64, happening: Happening) {
        match happening {
            Happening::SecretEmptied => {
                self.stored.secret = (self.stored.secret.0 + 1, None);
            }
            Happening::BundleWiped => {
                self.stored.bundle = (self.stored.bundle.0 + 1, Vec::new());
                self.wiped_for = 2 * LATE + 1;
            }
            Happening::Restarted(replica) => self.replicas[replica] = Replica::default(),
            Happening::Slow(replica) if self.replicas[replica].acted => {
                self.replicas[replica].slow_for = LATE - 1;
            }
            Happening::Slow(_) => {}
            Happening::Nothing => {}
        }
        let now = at(second);
        for replica in &mut self.replicas {
            if replica.slow_for > 0 {
                replica.slow_for -= 1;
                replica.acted = false;
                continue;
            }
            replica.acted = true;
            // The replica acts several times, because it sees its own writes at once.
            for _ in 0..4 {
                replica.seen = self.stored.clone();
                replica.act(&mut self.stored, now);
            }
        }
        self.recent.push_front(self.stored.bundle.1.clone());
        self.recent.truncate(LATE);
        self.wiped_for = self.wiped_for.saturating_sub(1);
        self.trace.push(format!(
            "{second} {happening:?}: bundle {:?}, stored {:?}, served {:?}",
            marks(&self.stored.bundle.1),
            self.stored
                .secret
                .1
                .as_ref()
                .map(|material| marks(material.certificates())),
            self.replicas
                .iter()
                .map(|replica| {
                    let served = replica.served.as_ref();
                    (
                        served.map(|served| mark(&served.certificate)),
                        replica.ready_for,
                        replica.slow_for,
                    )
                })
                .collect::<Vec<_>>()
        ));
        self.judge(second);
    }

    fn judge(&mut self, second: i64) {
        let now = at(second);
        for replica in &mut self.replicas {
            let Some(served) = &replica.served else {
                continue;
            };
            let certificate = &served.certificate;
            let ready = replica.trust.accepts(certificate, now);
            replica.ready_for = if ready { replica.ready_for + 1 } else { 0 };
            if !self.served.contains(certificate) {
                self.served.push(certificate.clone());
            }
            // The API server calls a replica only some time after the replica became ready. Right after the `caBundle` was
            // cleared, it cannot call any replica.
            if replica.ready_for <= LATE || self.wiped_for > 0 {
                continue;
            }
            for bundle in &self.recent {
                assert!(
                    bundle.contains(certificate),
                    "refused in second {second}: {} by {:?}\n{}",
                    mark(certificate),
                    marks(bundle),
                    self.trace[self.trace.len().saturating_sub(30)..].join("\n")
                );
            }
            assert!(now < certificate.expires, "expired in second {second}");
        }
    }
}

impl Replica {
    /// Does the work of the keeper without Kubernetes.
    fn act(&mut self, world: &mut Stored, now: Timestamp) {
        let wanted = wanted();
        let (version, material) = &self.seen.secret;
        let (generation, bundle) = self.seen.bundle.clone();
        self.trust
            .observe(Some(generation), vec![bundle.clone()], now);
        let (stored, served) = (material.as_ref(), self.served.as_ref());
        let next = state::next(now, stored, served, &self.trust, &wanted);
        if let Some(change) = next.change {
            let after = issue::apply(&change, now, &wanted).unwrap();
            if world.secret.0 == *version {
                world.secret = (version + 1, Some(after));
            }
            return;
        }
        let Some(material) = material else { return };
        let wanted_bundle: Vec<_> = material.certificates().into_iter().cloned().collect();
        if bundle != wanted_bundle && world.bundle.0 == generation {
            world.bundle = (generation + 1, wanted_bundle);
            return;
        }
        if state::serve(now, served, material, &self.trust, wanted.overlap) == Serve::Stored {
            self.served = Some(Served {
                certificate: material.current.certificate.clone(),
                since: now,
            });
        }
    }
}

#[test]
fn certificates_follow_one_another_for_ever() {
    let mut world = World::new(2);
    for second in 0..2000 {
        world.second(second, Happening::Nothing);
    }
    // There is a new certificate every 80 seconds: after two thirds of a certificate's life.
    assert!(
        (23..=26).contains(&world.served.len()),
        "{}",
        world.served.len()
    );
    assert!(world.stored.secret.1.unwrap().certificates().len() <= 2);
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        60 => Just(Happening::Nothing),
        1 => Just(Happening::SecretEmptied),
        1 => Just(Happening::BundleWiped),
        2 => (0..3_usize).prop_map(Happening::Restarted),
        10 => (0..3_usize).prop_map(Happening::Slow),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_replica_that_was_accepted_is_refused(happenings in proptest::collection::vec(happening(), 300)) {
        let mut world = World::new(3);
        for (second, happening) in happenings.into_iter().enumerate() {
            world.second(i64::try_from(second).unwrap(), happening);
        }
    }
}
