//! Validation of EdgeCluster and its template.

use std::net::IpAddr;

use slipway_runtime::admission::{
    Change, Verdict,
    field::{FieldError, Path},
};

use super::api::{EdgeCluster, EdgeClusterSpec, EdgeClusterTemplate, VirtualAddress};

/// The port of an apiserver that names none.
pub const DEFAULT_PORT: i32 = 6443;

pub fn validate(change: &Change<EdgeCluster>) -> Verdict {
    let Some(new) = &change.new else {
        return Verdict::allowed();
    };
    let path = Path::new("spec");
    let mut errors = spec_errors(&new.spec, &path);
    if let Some(old) = &change.old {
        errors.extend(immutable(&old.spec, &new.spec, &path));
    }
    Verdict::from_errors(errors, Vec::new())
}

pub fn validate_template(change: &Change<EdgeClusterTemplate>) -> Verdict {
    let Some(new) = &change.new else {
        return Verdict::allowed();
    };
    let path = Path::new("spec").child("template").child("spec");
    Verdict::from_errors(spec_errors(&new.spec.template.spec, &path), Vec::new())
}

/// The address and prefix length of a virtual address.
pub fn parse_address(address: &str) -> Option<(IpAddr, u8)> {
    let (ip, prefix) = address.split_once('/')?;
    let (ip, prefix): (IpAddr, u8) = (ip.parse().ok()?, prefix.parse().ok()?);
    (prefix <= if ip.is_ipv4() { 32 } else { 128 }).then_some((ip, prefix))
}

/// The endpoint that a virtual address makes.
pub fn endpoint_of(address: &VirtualAddress) -> Option<slipway_capi::contract::Endpoint> {
    Some(slipway_capi::contract::Endpoint {
        host: parse_address(&address.address)?.0.to_string(),
        port: address.port.unwrap_or(DEFAULT_PORT),
    })
}

fn spec_errors(spec: &EdgeClusterSpec, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(endpoint) = spec
        .control_plane_endpoint
        .as_ref()
        .filter(|endpoint| !endpoint.host.is_empty() || endpoint.port != 0)
    {
        let path = path.child("controlPlaneEndpoint");
        if endpoint.host.is_empty() {
            errors.push(FieldError::required(
                &path.child("host"),
                "the address of the load balancer",
            ));
        }
        if !(1..=65535).contains(&endpoint.port) {
            errors.push(FieldError::invalid(
                &path.child("port"),
                endpoint.port,
                "must be a port, 1 to 65535",
            ));
        }
    }
    let Some(address) = &spec.virtual_address else {
        return errors;
    };
    let path_of_address = path.child("virtualAddress");
    if parse_address(&address.address).is_none() {
        errors.push(FieldError::invalid(
            &path_of_address.child("address"),
            address.address.as_str(),
            "must be an address with its prefix length, e.g. 192.0.2.10/24",
        ));
    }
    if address.interface.is_empty() {
        errors.push(FieldError::required(
            &path_of_address.child("interface"),
            "the network interface of the hosts, e.g. eth0",
        ));
    }
    if let Some(kubeconfig) = address.kubeconfig.as_deref()
        && (!kubeconfig.starts_with('/') || kubeconfig.contains(char::is_whitespace))
    {
        errors.push(FieldError::invalid(
            &path_of_address.child("kubeconfig"),
            kubeconfig,
            "must be a path on the servers, e.g. /etc/rancher/k3s/k3s.yaml",
        ));
    }
    if let (Some(given), Some(made)) = (
        spec.control_plane_endpoint
            .as_ref()
            .filter(|endpoint| !endpoint.host.is_empty()),
        endpoint_of(address),
    ) && *given != made
    {
        errors.push(FieldError::invalid(
            &path.child("controlPlaneEndpoint"),
            format!("{}:{}", given.host, given.port),
            "must be left out together with virtualAddress, or be its address and port",
        ));
    }
    errors
}

fn immutable(old: &EdgeClusterSpec, new: &EdgeClusterSpec, path: &Path) -> Vec<FieldError> {
    const DETAIL: &str = "cannot be changed: every node and kubeconfig has it";
    let mut errors = Vec::new();
    let is_set = old
        .control_plane_endpoint
        .as_ref()
        .is_some_and(|endpoint| !endpoint.host.is_empty());
    if is_set && old.control_plane_endpoint != new.control_plane_endpoint {
        errors.push(FieldError::forbidden(&path.child("controlPlaneEndpoint"), DETAIL));
    }
    if old.virtual_address.is_some() && old.virtual_address != new.virtual_address {
        errors.push(FieldError::forbidden(&path.child("virtualAddress"), DETAIL));
    }
    errors
}
