//! What the protocol's compiler makes of `proto/agent.proto`.
#![allow(clippy::all, clippy::pedantic, reason = "generated")]

tonic::include_proto!("slipway.agent.v1");
include!(concat!(env!("OUT_DIR"), "/methods.rs"));
