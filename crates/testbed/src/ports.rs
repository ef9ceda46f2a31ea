//! Finds free ports on loopback. A program may need a minute until it listens on its port. All these ports are below the range of
//! ports that Linux gives to outgoing connections, so that no outgoing connection takes the port meanwhile. Such a loss would
//! be hard to find: Tekton's webhook, for example, reports no error if its port is taken.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use anyhow::{Context as _, Result};

/// The range of these ports. The launcher of the services uses ports below this range, see [`Ports`](crate::services::Ports).
const CANDIDATES: Range<u16> = 31_000..32_700;
/// The range is divided into strides of this many ports. The first port of a stride is its reservation: a listener there shows
/// that the stride is in use. Callers get the other ports.
const STRIDE: u16 = 10;

/// `N` (at most 9) free ports of 127.0.0.1. No other call of [`FreePorts::find`], in any process, returns them while this value
/// exists.
#[derive(Debug)]
pub struct FreePorts<const N: usize> {
    /// The ports.
    pub ports: [u16; N],
    _reservation: TcpListener,
}

impl<const N: usize> FreePorts<N> {
    const FIT: () = assert!(N < STRIDE as usize, "more ports than a reservation is for");

    /// Finds and reserves the ports.
    ///
    /// # Errors
    /// No ports are free.
    pub fn find() -> Result<Self> {
        let () = Self::FIT;
        places(CANDIDATES, STRIDE)
            .find_map(|place| {
                let reservation = listen(place)?;
                let mut following = place + 1..;
                let ports = [(); N].map(|()| following.next().unwrap_or(place));
                let free = ports.iter().all(|port| listen(*port).is_some());
                free.then_some(Self {
                    ports,
                    _reservation: reservation,
                })
            })
            .with_context(|| format!("no {N} free ports on 127.0.0.1 in {CANDIDATES:?}"))
    }
}

/// Returns each `stride`th port of a range, once. Different processes begin at different ports, so that they seldom try the
/// same port at the same time.
pub(crate) fn places(range: Range<u16>, stride: u16) -> impl Iterator<Item = u16> {
    let places = usize::from((range.end - range.start) / stride);
    let first = usize::try_from(std::process::id()).unwrap_or_default() % places;
    range
        .step_by(usize::from(stride))
        .take(places)
        .cycle()
        .skip(first)
        .take(places)
}

/// Listens on a port of loopback. Returns `None` if the port is taken.
pub(crate) fn listen(port: u16) -> Option<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn nobody_is_given_a_port_that_another_was_given_or_listens_on() {
        let first = FreePorts::<4>::find().unwrap();
        let second = FreePorts::<4>::find().unwrap();
        let [taken, ..] = second.ports;
        let _listener = listen(taken).unwrap();
        drop(second); // the reservation alone, as after the end of a launcher whose bed stays
        let third = FreePorts::<4>::find().unwrap();

        let given: BTreeSet<u16> = first.ports.into_iter().chain(third.ports).collect();
        assert_eq!(given.len(), 8, "{given:?}");
        assert!(!given.contains(&taken), "{taken} in {given:?}");
    }

    #[test]
    fn each_place_is_tried_once_wherever_the_first_is() {
        let tried: Vec<u16> = places(100..200, 10).collect();
        let different: BTreeSet<u16> = tried.iter().copied().collect();
        assert_eq!(tried.len(), 10);
        assert_eq!(different, (100..200).step_by(10).collect());
    }
}
