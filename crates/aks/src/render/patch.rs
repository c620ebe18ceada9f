//! The users' merge patches, applied to a manifest before it is sent.

use serde_json::Value;

use super::RenderError;
use crate::admit::patches;

pub fn apply(manifest: &mut Value, field: &'static str, texts: &[String]) -> Result<(), RenderError> {
    for (index, text) in texts.iter().enumerate() {
        let patch = patches::read(text).map_err(|problem| RenderError::Patch {
            field,
            index,
            problem,
        })?;
        json_patch::merge(manifest, &patch);
    }
    Ok(())
}
