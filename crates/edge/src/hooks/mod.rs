//! What Cluster API is answered about updates in place. Questions are answered from the request alone; an update is answered from its
//! NodeUpgrade, which the answer may ask to be made. Every answer is the same for the same facts, whoever gives it.

mod act;
pub mod can_update;
pub mod change;
pub mod command;
pub mod explain;
pub mod observe;
pub mod serve;
pub mod update;
pub mod upgrade_plan;
