//! Generates the stubs from proto/mq.proto.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../../proto/mq.proto");
    let descriptors = protox::compile(["mq.proto"], ["../../proto"])?;
    tonic_prost_build::configure().build_server(false).compile_fds(descriptors)?;
    Ok(())
}
