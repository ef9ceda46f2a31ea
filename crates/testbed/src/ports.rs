//! Free ports on loopback. A port is found by binding and letting go, so somebody else may take it before the process
//! it is meant for does: who uses these must be ready to try again.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context as _, Result};

/// `N` different free ports of 127.0.0.1.
///
/// # Errors
/// When the system has no free port.
pub fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("failed to find a free port")?;
        *port = listener
            .local_addr()
            .context("failed to find a free port")?
            .port();
        held.push(listener);
    }
    Ok(ports)
}
