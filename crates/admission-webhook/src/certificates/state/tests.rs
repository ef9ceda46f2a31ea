//! Tests of the decisions, as tables. The certificates are not real. `super::super::tests` tests sequences of decisions with real
//! certificates.

use super::*;
use crate::certificates::material::PrivateKey;

const START: i64 = 1_800_000_000;
const LIFETIME: i64 = 900;
const OVERLAP: i64 = 10;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START + second).unwrap()
}

fn wanted() -> Wanted {
    Wanted {
        names: ["webhook".to_owned()].into(),
        lifetime: SignedDuration::from_secs(LIFETIME),
        overlap: SignedDuration::from_secs(OVERLAP),
    }
}

fn certificate(id: &str, issued: i64) -> Certificate {
    Certificate {
        der: id.into(),
        issued: at(issued),
        expires: at(issued + LIFETIME),
        names: ["webhook".to_owned()].into(),
        authorities: Vec::new(),
    }
}

fn old() -> Certificate {
    certificate("old", 0)
}

fn new() -> Certificate {
    certificate("new", 600)
}

fn pair(certificate: Certificate) -> Pair {
    Pair {
        certificate,
        intermediates: Vec::new(),
        key: PrivateKey("secret".to_owned()),
    }
}

/// The Secret with only certificate `old`, which was issued at 0.
fn material() -> Material {
    Material {
        current: pair(old()),
        next: None,
        previous: Vec::new(),
    }
}

/// The Secret with next certificate `new`, which was issued at 600.
fn introduced() -> Material {
    Material {
        next: Some(pair(new())),
        ..material()
    }
}

fn promoted() -> Material {
    Material {
        current: pair(new()),
        next: None,
        previous: vec![old()],
    }
}

/// A webhook configuration that trusts these certificates. Each number is the second at which the trust began.
fn trust(certificates: &[(Certificate, i64)]) -> Trust {
    let mut trust = Trust::default();
    let mut seen = Vec::new();
    trust.observe(Some(1), Vec::new(), at(0));
    for (generation, (certificate, since)) in (2..).zip(certificates) {
        seen.push(certificate.clone());
        trust.observe(Some(generation), vec![seen.clone()], at(*since));
    }
    trust
}

fn served(certificate: Certificate, since: i64) -> Option<Served> {
    Some(Served {
        certificate,
        since: at(since),
    })
}

fn id(certificate: &Certificate) -> &str {
    std::str::from_utf8(&certificate.der).unwrap()
}

fn name(change: &Change<'_>) -> String {
    match change {
        Change::Begin { trusted } => {
            let ids: Vec<_> = trusted.iter().map(id).collect();
            format!("begin, trusting {ids:?}")
        }
        Change::Introduce(_) => "introduce".to_owned(),
        Change::Promote(_, next) => format!("promote {}", id(&next.certificate)),
        Change::Retire(_) => "retire".to_owned(),
    }
}

#[track_caller]
fn check(
    now: i64,
    stored: Option<&Material>,
    served: Option<&Served>,
    trust: &Trust,
    expected: &str,
) {
    let Next { change, look_again } = next(at(now), stored, served, trust, &wanted());
    let answer = match (change, look_again) {
        (Some(change), _) => name(&change),
        (None, Some(again)) => format!("wait until {}", again.as_second() - START),
        (None, None) => "wait".to_owned(),
    };
    assert_eq!(answer, expected);
}

#[test]
fn an_empty_secret_gets_a_certificate_and_trusted_certificates_stay_trusted() {
    check(5, None, None, &trust(&[]), "begin, trusting []");
    check(5, None, None, &Trust::default(), "begin, trusting []");
    let both = trust(&[(old(), 1), (new(), 601)]);
    check(700, None, None, &both, r#"begin, trusting ["old", "new"]"#);
    check(900, None, None, &both, r#"begin, trusting ["new"]"#);
    let expired = trust(&[(old(), 1)]);
    check(900, Some(&material()), None, &expired, "begin, trusting []");
}

#[test]
fn a_certificate_is_replaced_in_steps_after_two_thirds_of_its_life() {
    let only_old = trust(&[(old(), 1)]);
    let serves_old = served(old(), 1);
    let check = |now, stored: &Material, served: &Option<Served>, trust: &Trust, expected: &str| {
        check(now, Some(stored), served.as_ref(), trust, expected);
    };
    check(0, &material(), &serves_old, &only_old, "wait until 600");
    check(599, &material(), &serves_old, &only_old, "wait until 600");
    check(600, &material(), &serves_old, &only_old, "introduce");

    // The promotion waits until the webhook configuration has trusted the certificate for one overlap.
    check(650, &introduced(), &serves_old, &only_old, "wait");
    let both = trust(&[(old(), 1), (new(), 603)]);
    check(612, &introduced(), &serves_old, &both, "wait until 613");
    check(613, &introduced(), &serves_old, &both, "promote new");

    // Replicas get one overlap to see the new certificate, and one more to serve it.
    check(620, &promoted(), &serves_old, &both, "wait");
    check(620, &promoted(), &None, &both, "wait");
    let serves_new = served(new(), 613);
    check(632, &promoted(), &serves_new, &both, "wait until 633");
    check(633, &promoted(), &serves_new, &both, "retire");
    // API servers have trusted the current certificate for too short a time, so perhaps some replicas do not serve it yet.
    let late = trust(&[(old(), 1), (new(), 625)]);
    check(644, &promoted(), &serves_new, &late, "wait until 645");
    check(644, &promoted(), &serves_new, &only_old, "wait");

    let retired = Material {
        previous: Vec::new(),
        ..promoted()
    };
    check(650, &retired, &serves_new, &both, "wait until 1200");
}

#[test]
fn a_certificate_that_lacks_a_name_is_replaced_at_once() {
    let serves = served(old(), 1);
    let mut stored = material();
    let mut check = |names: &[&str], expected: &str| {
        stored.current.certificate.names = names.iter().map(|name| (*name).to_owned()).collect();
        let trust = trust(&[(stored.current.certificate.clone(), 1)]);
        check(1, Some(&stored), serves.as_ref(), &trust, expected);
    };
    check(&["other"], "introduce");
    // Names that this replica does not need are allowed, because another replica may need them.
    check(&["other", "webhook"], "wait until 600");
}

#[test]
fn a_next_certificate_that_expired_in_waiting_is_replaced() {
    let mut stored = introduced();
    stored.current.certificate.expires = at(100_000);
    let trusted = trust(&[(stored.current.certificate.clone(), 1)]);
    let expired = 600 + LIFETIME;
    check(expired, Some(&stored), None, &trusted, "wait until 66666");
    check(66_667, Some(&stored), None, &trusted, "introduce");
}

#[test]
fn trust_is_as_old_as_its_last_interruption() {
    let mut trust = trust(&[(old(), 1)]);
    let bundle = || vec![old()];
    trust.observe(Some(3), vec![bundle(), bundle()], at(7));
    assert_eq!(trust.since(&old()), Some(at(1)));
    // A certificate counts as trusted only if both webhooks trust it.
    trust.observe(Some(4), vec![bundle(), Vec::new()], at(8));
    assert_eq!(trust.since(&old()), None);
    trust.observe(Some(5), vec![bundle(), bundle()], at(9));
    assert_eq!(trust.since(&old()), Some(at(9)));
    trust.observe(Some(5), vec![bundle(), bundle()], at(10));
    assert_eq!(trust.since(&old()), Some(at(9)));
    // Generation 6 was not seen, and perhaps the certificate was not trusted there.
    trust.observe(Some(7), vec![bundle(), bundle()], at(11));
    assert_eq!(trust.since(&old()), Some(at(11)));
}

#[test]
fn the_current_certificate_is_served_once_it_is_trusted_for_the_overlap() {
    #[track_caller]
    fn check(now: i64, served: Option<Served>, trust: &Trust, expected: Serve) {
        let overlap = SignedDuration::from_secs(OVERLAP);
        let answer = serve(at(now), served.as_ref(), &promoted(), trust, overlap);
        assert_eq!(answer, expected);
    }
    let only_old = trust(&[(old(), 1)]);
    let both = trust(&[(old(), 1), (new(), 605)]);
    check(611, None, &only_old, Serve::Stored);
    check(611, served(new(), 611), &only_old, Serve::Keep);
    check(611, served(old(), 1), &only_old, Serve::Keep);
    check(614, served(old(), 1), &both, Serve::KeepUntil(at(615)));
    check(615, served(old(), 1), &both, Serve::Stored);
    // API servers do not accept the served certificate: it has expired, or it is not trusted.
    check(900, served(old(), 1), &only_old, Serve::Stored);
    check(611, served(old(), 1), &trust(&[]), Serve::Stored);
}

/// A certificate of this CA.
fn of(authority: Certificate, id: &str) -> Certificate {
    Certificate {
        authorities: vec![authority],
        ..certificate(id, 0)
    }
}

#[test]
fn a_certificate_of_a_ca_is_trusted_and_served_with_its_ca() {
    let (first, second) = (of(old(), "first"), of(old(), "second"));
    let other = of(new(), "other");
    let overlap = SignedDuration::from_secs(OVERLAP);
    let both = trust(&[(old(), 1), (new(), 605)]);
    let decide = |now, to: &Certificate, trust: &Trust| {
        let stored = Material {
            current: pair(to.clone()),
            ..material()
        };
        serve(
            at(now),
            served(first.clone(), 1).as_ref(),
            &stored,
            trust,
            overlap,
        )
    };
    // API servers already trust the CA of the second certificate.
    assert_eq!(decide(11, &second, &trust(&[(old(), 1)])), Serve::Stored);
    assert_eq!(decide(611, &other, &trust(&[(old(), 1)])), Serve::Keep);
    assert_eq!(decide(611, &other, &both), Serve::KeepUntil(at(615)));
    assert_eq!(decide(615, &other, &both), Serve::Stored);
    let of_both = Certificate {
        authorities: vec![old(), new()],
        ..first.clone()
    };
    assert_eq!(decide(611, &of_both, &both), Serve::KeepUntil(at(615)));

    let outgoing = |now, served: Option<Served>, trust: &Trust| {
        let (kept, until) = outgoing(at(now), served.as_ref(), &other, trust, overlap);
        (kept, until.map(|until| until.as_second() - START))
    };
    let only_old = trust(&[(old(), 1)]);
    assert_eq!(
        outgoing(611, served(first.clone(), 1), &only_old),
        (vec![old()], None)
    );
    assert_eq!(outgoing(611, None, &both), (vec![old()], None));
    assert_eq!(
        outgoing(634, served(other.clone(), 615), &both),
        (vec![old()], Some(635))
    );
    assert_eq!(
        outgoing(635, served(other.clone(), 615), &both),
        (Vec::new(), None)
    );
    // An expired CA is no longer needed.
    assert_eq!(outgoing(900, None, &both), (Vec::new(), None));
}
