//! The interface of the host is found by the rules in it, whatever programs an image brings along.

use pointsman_kernel::iptables::Variant;
use pointsman_testkit::netns::Namespace;
use pointsman_testkit::require_netns;

fn detected(script: &str) -> Variant {
    let namespace = Namespace::new().expect("a namespace");
    namespace.sh(script);
    namespace.run(|| Variant::detect().expect("a variant"))
}

#[test]
fn the_kubelet_decides_then_most_rules_then_the_program() {
    require_netns!();
    let rule = "-w -A INPUT -s 192.0.2.1 -j ACCEPT";
    let many = format!("iptables-nft {rule}; iptables-nft {rule}");
    assert_eq!(detected("true"), Variant::Nft, "what Debian's `iptables` is");
    let canary = "iptables-legacy -w -t mangle -N KUBE-KUBELET-CANARY";
    assert_eq!(detected(&format!("{canary}; {many}")), Variant::Legacy);
    let hint = "iptables-nft -w -t mangle -N KUBE-IPTABLES-HINT";
    assert_eq!(detected(&format!("{hint}; iptables-legacy {rule}")), Variant::Nft);
    assert_eq!(detected(&format!("iptables-legacy {rule}")), Variant::Legacy);
    assert_eq!(detected(&format!("{many}; iptables-legacy {rule}")), Variant::Nft);
}
