//! Admission of AzureManagedControlPlaneTemplates: as their control planes, as far as a template says anything.

use kube::ResourceExt;
use serde_json::json;
use slipway_capi::topology;
use slipway_runtime::admission::{
    Admission, Change, Verdict,
    field::{FieldError, Path},
};

use crate::{
    admit::{
        handler::{CREATE_UPDATE, is_leaving, new_errors, validating_with},
        immutable::immutable_fields,
    },
    api::AzureManagedControlPlaneTemplate,
    control_plane::admit::{
        ClusterNetworkFact,
        access::{self, aad_update},
        defaults::{ranges, tier},
        extension, network, network_of, security, shared,
        update::{network_access, version_update, virtual_network},
    },
    version::with_v,
};

pub const TEMPLATE_FIXED: &[&str] = &[
    "subscriptionID",
    "location",
    "dnsServiceIP",
    "networkPlugin",
    "networkPolicy",
    "networkDataplane",
    "loadBalancerSKU",
    "outboundType",
];
const TEMPLATE_NETWORK: &[&str] = &["cidrBlock", "subnet.name", "subnet.cidrBlock"];

/// What a user left open and the schema cannot fill in.
pub fn default(template: &mut AzureManagedControlPlaneTemplate) {
    let name = template.name_any();
    let class = &mut template.spec.template.spec;
    class.network_plugin.get_or_insert_with(|| "azure".to_owned());
    class
        .load_balancer_sku
        .get_or_insert_with(|| "Standard".to_owned());
    class.enable_preview_features.get_or_insert(false);
    class.version = with_v(&class.version);
    ranges(class);
    if class.virtual_network.subnet.name.is_empty() {
        class.virtual_network.subnet.name = name;
    }
    tier(&mut class.sku);
}

/// Everything a template must fulfil whenever it is written.
pub fn validate(template: &AzureManagedControlPlaneTemplate, fact: &ClusterNetworkFact) -> Vec<FieldError> {
    let root = Path::new("spec").child("template").child("spec");
    let class = &template.spec.template.spec;
    let mut errors = Vec::new();
    errors.extend(access::identity(&root, class));
    errors.extend(network::plugin_mode(&root, class));
    errors.extend(access::local_accounts(&root, class));
    errors.extend(shared(&root, class, &template.name_any(), fact));
    errors
}

/// What of a template cannot change, or only in one direction.
pub fn validate_update(
    old: &AzureManagedControlPlaneTemplate,
    new: &AzureManagedControlPlaneTemplate,
) -> Vec<FieldError> {
    let root = Path::new("spec").child("template").child("spec");
    let (old, new) = (&old.spec.template.spec, &new.spec.template.spec);
    let mut errors = immutable_fields(&root, TEMPLATE_FIXED, old, new);
    errors.extend(aad_update(&root, old, new));
    errors.extend(virtual_network(&root, old, new, TEMPLATE_NETWORK));
    errors.extend(security::validate_update(&root, old, new));
    if network_access(old) != network_access(new) {
        errors.push(FieldError::invalid(
            &root.child("apiServerAccessProfile"),
            json!(new.api_server_access_profile),
            "fields are immutable",
        ));
    }
    errors.extend(extension::validate_update(
        &root,
        &old.extensions,
        &new.extensions,
    ));
    errors.extend(version_update(&root, old, new));
    errors
}

pub fn verdict(
    change: &Change<AzureManagedControlPlaneTemplate>,
    fact: &ClusterNetworkFact,
    topology_dry_run: bool,
) -> Verdict {
    let Some(new) = change.new.as_ref().filter(|new| !is_leaving(*new)) else {
        return Verdict::allowed();
    };
    let mut errors = match &change.old {
        Some(old) if old.spec == new.spec => return Verdict::allowed(),
        Some(old) if !topology_dry_run => validate_update(old, new),
        _ => Vec::new(),
    };
    if errors.is_empty() {
        errors = new_errors(change, |template| validate(template, fact));
    }
    let mut warnings = Vec::new();
    if !new.spec.template.spec.virtual_network.name.is_empty() {
        warnings.push(
            "spec.template.spec.virtualNetwork.name: virtual network names cannot be shared across clusters"
                .to_owned(),
        );
    }
    Verdict::from_errors(errors, warnings)
}

pub fn defaulting() -> Admission {
    Admission::defaulting::<AzureManagedControlPlaneTemplate>(|new, _| default(new))
}

pub fn validating() -> Admission {
    validating_with::<AzureManagedControlPlaneTemplate, _>(
        CREATE_UPDATE,
        |request, change, client| async move {
            let fact = network_of(change.new.as_ref(), &client).await;
            verdict(&change, &fact, topology::is_dry_run(&request))
        },
    )
}
