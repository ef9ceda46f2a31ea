//! The decisions as tables, with certificates that are mere descriptions. How they play together over time is in
//! `super::super::rotation_tests`.

use super::*;
use crate::certificates::material::PrivateKey;

const START: i64 = 1_800_000_000;
const AUTHORITY: i64 = 9000;
const CERTIFICATE: i64 = 900;
const OVERLAP: i64 = 10;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START + second).unwrap()
}

fn wanted() -> Wanted {
    Wanted {
        names: ["webhook".to_owned()].into(),
        authority_lifetime: SignedDuration::from_secs(AUTHORITY),
        certificate_lifetime: SignedDuration::from_secs(CERTIFICATE),
        overlap: SignedDuration::from_secs(OVERLAP),
    }
}

fn certificate(key: &str, signer: &str, issued: i64, life: i64) -> Certificate {
    Certificate {
        der: format!("{key} by {signer} at {issued}").into_bytes(),
        issued: at(issued),
        expires: at(issued + life),
        key: key.into(),
        signer: signer.into(),
        names: if key == signer {
            BTreeSet::new()
        } else {
            ["webhook".to_owned()].into()
        },
    }
}

fn pair(certificate: Certificate) -> Pair {
    Pair {
        certificate,
        key: PrivateKey("secret".to_owned()),
    }
}

fn authority(key: &str, issued: i64) -> Certificate {
    certificate(key, key, issued, AUTHORITY)
}

fn serving(signer: &str, issued: i64) -> Pair {
    pair(certificate("", signer, issued, CERTIFICATE))
}

/// Authority `old` made at 0, and a certificate of it.
fn material(issued: i64) -> Material {
    Material {
        current: pair(authority("old", 0)),
        next: None,
        previous: Vec::new(),
        serving: serving("old", issued),
    }
}

/// While `new`, made at 6000, is to follow.
fn introduced() -> Material {
    Material {
        next: Some(pair(authority("new", 6000))),
        ..material(5900)
    }
}

/// After `new` has followed at 6010.
fn promoted() -> Material {
    Material {
        current: pair(authority("new", 6000)),
        previous: vec![authority("old", 0)],
        next: None,
        serving: serving("new", 6010),
    }
}

/// A configuration that has come to trust these authorities, each made and trusted since those seconds.
fn trust(authorities: &[(&str, i64, i64)]) -> Trust {
    let mut trust = Trust::default();
    let mut seen = Vec::new();
    trust.observe(Some(1), Vec::new(), at(0));
    for (generation, (key, issued, since)) in (2..).zip(authorities) {
        seen.push(authority(key, *issued));
        trust.observe(Some(generation), vec![seen.clone()], at(*since));
    }
    trust
}

fn name(change: &Change<'_>) -> String {
    match change {
        Change::Begin { trusted } => {
            let keys: Vec<_> = trusted
                .iter()
                .map(|authority| String::from_utf8(authority.key.clone()).unwrap())
                .collect();
            format!("begin, trusting {keys:?}")
        }
        Change::Introduce(_) => "introduce".to_owned(),
        Change::Promote(_, next) => {
            format!(
                "promote {}",
                String::from_utf8(next.certificate.key.clone()).unwrap()
            )
        }
        Change::Renew(_) => "renew".to_owned(),
        Change::Retire(_) => "retire".to_owned(),
    }
}

#[track_caller]
fn check(now: i64, stored: Option<&Material>, trust: &Trust, expected: &str) {
    let Next { change, look_again } = next(at(now), stored, trust, &wanted());
    let answer = match (change, look_again) {
        (Some(change), _) => name(&change),
        (None, Some(again)) => format!("wait until {}", again.as_second() - START),
        (None, None) => "wait".to_owned(),
    };
    assert_eq!(answer, expected);
}

#[test]
fn everything_is_made_where_there_is_nothing_and_what_is_trusted_goes_on_being_trusted() {
    check(5, None, &trust(&[]), "begin, trusting []");
    check(5, None, &Trust::default(), "begin, trusting []");
    check(
        5,
        None,
        &trust(&[("old", 0, 1)]),
        r#"begin, trusting ["old"]"#,
    );
    let long_expired = trust(&[("old", 0, 1), ("new", 6000, 6001)]);
    check(9000, None, &long_expired, r#"begin, trusting ["new"]"#);
    let stored = material(8500);
    check(
        9000,
        Some(&stored),
        &trust(&[("old", 0, 1)]),
        "begin, trusting []",
    );
}

#[test]
fn a_certificate_is_renewed_after_two_thirds_of_its_life() {
    let stored = material(0);
    let trust = trust(&[("old", 0, 1)]);
    check(0, Some(&stored), &trust, "wait until 600");
    check(599, Some(&stored), &trust, "wait until 600");
    check(600, Some(&stored), &trust, "renew");
    check(2000, Some(&stored), &trust, "renew");
}

#[test]
fn a_certificate_that_lacks_a_name_is_renewed_at_once() {
    let mut stored = material(0);
    stored.serving.certificate.names = ["other".to_owned()].into();
    check(1, Some(&stored), &trust(&[("old", 0, 1)]), "renew");
    // One that has more than is wanted here stays: another replica may want it.
    stored.serving.certificate.names = ["other".to_owned(), "webhook".to_owned()].into();
    check(1, Some(&stored), &trust(&[("old", 0, 1)]), "wait until 600");
}

#[test]
fn an_authority_is_followed_by_another_in_steps() {
    let before = material(5900);
    let old = trust(&[("old", 0, 1)]);
    check(5999, Some(&before), &old, "wait until 6000");
    check(6000, Some(&before), &old, "introduce");

    // Not before the webhook configuration has trusted it for the overlap.
    let stored = introduced();
    check(6400, Some(&stored), &old, "wait until 6500");
    check(6500, Some(&stored), &old, "renew");
    let both = trust(&[("old", 0, 1), ("new", 6000, 6003)]);
    check(6012, Some(&stored), &both, "wait until 6013");
    check(6013, Some(&stored), &both, "promote new");
    // The next one comes before a certificate of the current one.
    check(6600, Some(&stored), &both, "promote new");

    // The overlap for replicas to see that they may change, and once more to do so.
    let stored = promoted();
    check(6029, Some(&stored), &both, "wait until 6030");
    check(6030, Some(&stored), &both, "retire");
    // Not while others may still wait for trust in the current one.
    let late = trust(&[("old", 0, 1), ("new", 6000, 6025)]);
    check(6044, Some(&stored), &late, "wait until 6045");
    check(6044, Some(&stored), &old, "wait until 6610");
    let retired = Material {
        previous: Vec::new(),
        ..promoted()
    };
    check(6031, Some(&retired), &both, "wait until 6610");
}

#[test]
fn a_next_authority_that_expired_in_waiting_is_replaced() {
    let mut stored = introduced();
    stored.current = pair(certificate("old", "old", 0, 100_000));
    stored.serving = pair(certificate("", "old", 0, 100_000));
    let trusted = trust(&[("old", 0, 1)]);
    check(15_000, Some(&stored), &trusted, "wait until 66666");
    let mut worn = stored.clone();
    worn.current = pair(certificate("old", "old", -10_000, 30_000));
    check(15_000, Some(&worn), &trusted, "introduce");
}

#[test]
fn the_webhook_configuration_is_written_where_it_differs() {
    let stored = introduced();
    let old_and_new = || vec![authority("new", 6000), authority("old", 0)];
    let differs = |bundles: Option<Vec<Vec<Certificate>>>| {
        let mut trust = Trust::default();
        trust.observe(
            bundles.as_ref().map(|_| 1),
            bundles.unwrap_or_default(),
            at(0),
        );
        trust.differs_from(&stored)
    };
    assert!(!differs(None), "there is nothing to write to");
    assert!(!differs(Some(vec![old_and_new(), old_and_new()])));
    assert!(differs(Some(vec![Vec::new()])));
    assert!(differs(Some(vec![
        old_and_new(),
        vec![authority("old", 0)]
    ])));
    let mut more = old_and_new();
    more.push(authority("stranger", 0));
    assert!(differs(Some(vec![more])));
}

#[test]
fn trust_is_as_old_as_its_last_interruption() {
    let mut trust = trust(&[("old", 0, 1)]);
    let old = || vec![authority("old", 0)];
    trust.observe(Some(3), vec![old(), old()], at(7));
    assert_eq!(trust.since(b"old"), Some(at(1)));
    // One webhook of two that does not trust it is as good as none.
    trust.observe(Some(4), vec![old(), Vec::new()], at(8));
    assert_eq!(trust.since(b"old"), None);
    trust.observe(Some(5), vec![old(), old()], at(9));
    assert_eq!(trust.since(b"old"), Some(at(9)));
    trust.observe(Some(5), vec![old(), old()], at(10));
    assert_eq!(trust.since(b"old"), Some(at(9)));
    // A generation that was not seen may have trusted nobody.
    trust.observe(Some(7), vec![old(), old()], at(11));
    assert_eq!(trust.since(b"old"), Some(at(11)));
}

#[track_caller]
fn check_serve(now: i64, served: Option<&Pair>, stored: &Material, trust: &Trust, expected: Serve) {
    let served = served.map(|served| &served.certificate);
    let overlap = SignedDuration::from_secs(OVERLAP);
    assert_eq!(serve(at(now), served, stored, trust, overlap), expected);
}

#[test]
fn what_is_stored_is_served_once_it_is_trusted_for_the_overlap() {
    let before = serving("old", 5900);
    let stored = promoted();
    let old = trust(&[("old", 0, 1)]);
    let both = trust(&[("old", 0, 1), ("new", 6000, 6005)]);
    check_serve(6011, None, &stored, &old, Serve::Stored);
    check_serve(6011, Some(&stored.serving), &stored, &old, Serve::Keep);
    check_serve(6011, Some(&before), &stored, &old, Serve::Keep);
    check_serve(
        6014,
        Some(&before),
        &stored,
        &both,
        Serve::KeepUntil(at(6015)),
    );
    check_serve(6015, Some(&before), &stored, &both, Serve::Stored);
    // A certificate of the same authority needs no waiting.
    check_serve(
        700,
        Some(&serving("old", 0)),
        &material(600),
        &old,
        Serve::Stored,
    );
    // What nobody accepts any more is no better than what nobody accepts yet.
    check_serve(6800, Some(&before), &stored, &old, Serve::Stored);
    check_serve(6011, Some(&before), &stored, &trust(&[]), Serve::Stored);
}
