//! Tests of the pure half of the node agent.

mod manifest;
