#![allow(missing_docs)]
fn main() -> anyhow::Result<()> {
    testbed::build(std::path::Path::new(&std::env::args().nth(1).unwrap_or_default()), &testbed::Lines)?;
    Ok(())
}
