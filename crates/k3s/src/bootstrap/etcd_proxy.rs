//! The DaemonSet through which cluster-api-k3s reaches etcd. Slipway never uses it; it stays in the userdata so that
//! the same spec gives the same bytes and a cluster can be handed back.

pub const PATH: &str = "/var/lib/rancher/k3s/server/manifests/etcd-proxy.yaml";
const DEFAULT_IMAGE: &str = "alpine/socat:1.8.0.0";

/// Lines of a block mapping: depth, then text.
type Lines = Vec<(usize, String)>;

fn labels(lines: &mut Lines, depth: usize, name: &str) {
    lines.push((depth, format!("{name}:")));
    lines.push((depth + 1, "app: etcd-proxy".into()));
}

/// The manifest for the image the spec names, or the default one from the spec's registry.
pub fn manifest(image: Option<&str>, registry: Option<&str>) -> String {
    let image = match (image, registry) {
        (Some(image), _) if !image.is_empty() => image.to_owned(),
        (_, Some(registry)) if !registry.is_empty() => format!("{registry}/{DEFAULT_IMAGE}"),
        _ => DEFAULT_IMAGE.to_owned(),
    };
    let mut lines: Lines = Vec::new();
    let mut put = |depth: usize, text: &str| lines.push((depth, text.to_owned()));
    put(0, "apiVersion: apps/v1");
    put(0, "kind: DaemonSet");
    put(0, "metadata:");
    put(1, "name: etcd-proxy");
    put(1, "namespace: kube-system");
    labels(&mut lines, 1, "labels");
    lines.push((0, "spec:".into()));
    lines.push((1, "selector:".into()));
    labels(&mut lines, 2, "matchLabels");
    lines.push((1, "template:".into()));
    lines.push((2, "metadata:".into()));
    labels(&mut lines, 3, "labels");
    lines.push((2, "spec:".into()));
    lines.push((3, "nodeSelector:".into()));
    lines.push((4, "node-role.kubernetes.io/etcd: \"true\"".into()));
    lines.push((3, "tolerations:".into()));
    for role in ["control-plane", "master"] {
        lines.push((3, format!("- key: node-role.kubernetes.io/{role}")));
        lines.push((4, "operator: Exists".into()));
        lines.push((4, "effect: NoSchedule".into()));
    }
    lines.push((3, "containers:".into()));
    lines.push((3, "- name: etcd-proxy".into()));
    let container = [
        // The blank lines are where cluster-api-k3s' template decides between the two images.
        String::new(),
        format!("image: {}", super::render::literal_unless_template(&image, 15)),
        String::new(),
        "env:".into(),
        "- name: HOSTIP".into(),
        "  valueFrom:".into(),
        "    fieldRef:".into(),
        "      fieldPath: status.hostIP".into(),
        "args: ".into(),
        "- TCP4-LISTEN:2379,fork,reuseaddr".into(),
        "- TCP4:$(HOSTIP):2379".into(),
        "resources:".into(),
        "  limits:".into(),
        "    memory: 200Mi".into(),
        "  requests:".into(),
        "    cpu: 100m".into(),
        "    memory: 200Mi".into(),
        "volumeMounts:".into(),
        "- name: varlog".into(),
        "  mountPath: /var/log".into(),
    ];
    lines.extend(container.into_iter().map(|line| (4, line)));
    lines.push((3, "terminationGracePeriodSeconds: 30".into()));
    lines.push((3, "volumes:".into()));
    lines.push((3, "- name: varlog".into()));
    lines.push((4, "hostPath:".into()));
    lines.push((5, "path: /var/log".into()));
    let mut out = String::new();
    for (depth, text) in lines {
        out.push_str(&"  ".repeat(depth));
        out.push_str(&text);
        out.push('\n');
    }
    out
}
