//! Classic clusters become clusters of inline resources: the whole way and back, killed anywhere, and every mistake on the way by hand.

mod kills;
mod table;
mod way;
mod world;
