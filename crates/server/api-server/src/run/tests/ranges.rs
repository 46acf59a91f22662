//! Do IPAddresses show which addresses Services hold, and ServiceCIDRs say which ones they may get?

use super::*;
use crate::background::ranges;
use jiff::{SignedDuration, Timestamp};
use pointsman_rules::kinds::declared::{IP_ADDRESS, SERVICE_CIDR};
use pointsman_store::{Op, Transaction};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";

fn service(name: &str, address: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"clusterIP": address, "ports": [{"port": 80}]}})
}

fn range(cidr: &str) -> Value {
    json!({"metadata": {"name": "more"}, "spec": {"cidrs": [cidr]}})
}

impl World {
    async fn expect(&self, code: u16, method: Method, path: &str, body: &Value) -> String {
        let (found, why) = self.ask(&admin(), method.clone(), path, body).await;
        assert_eq!(found, code, "{method} {path}: {why}");
        why
    }

    fn parent(&self, address: &str) -> Option<Value> {
        let shown = self.server.find(&IP_ADDRESS, "", address).ok()?;
        Some(shown.value()["spec"]["parentRef"].clone())
    }

    async fn up_to_date(&self) {
        let now = self.server.store.revision().await.unwrap();
        self.server.cache.wait_for(now).await;
    }

    fn range(&self, name: &str) -> Option<Arc<crate::cache::object::Object>> {
        self.server.find(&SERVICE_CIDR, "", name).ok()
    }

    /// What the loop does about the range `name` so long from now.
    async fn release(&self, name: &str, seconds: i64) {
        let range = self.range(name).unwrap();
        let now = Timestamp::now() + SignedDuration::from_secs(seconds);
        ranges::release(&self.server, &range, range.value(), now)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn an_address_is_shown_while_a_service_holds_it() {
    let world = World::new().await;
    let parent =
        |name: &str| json!({"group": "", "resource": "services", "namespace": "default", "name": name});
    assert_eq!(world.parent("10.96.0.1"), Some(parent("kubernetes")));
    let (web, shown) = (format!("{SERVICES}/web"), format!("{ADDRESSES}/10.96.3.3"));
    world
        .expect(201, Method::POST, SERVICES, &service("web", "10.96.3.3"))
        .await;
    assert_eq!(world.parent("10.96.3.3"), Some(parent("web")));
    let why = world.expect(403, Method::DELETE, &shown, &json!({})).await;
    assert!(why.contains("the Service default/web has this address"), "{why}");
    let external = json!({"spec": {"type": "ExternalName", "externalName": "a.test", "clusterIP": null, "clusterIPs": null}});
    world.expect(200, Method::PATCH, &web, &external).await;
    assert_eq!(world.parent("10.96.3.3"), None, "it was given back");
    let back = json!({"spec": {"type": "ClusterIP", "externalName": null, "clusterIP": "10.96.3.3"}});
    world.expect(200, Method::PATCH, &web, &back).await;
    assert!(world.parent("10.96.3.3").is_some());
    world.expect(200, Method::DELETE, &web, &json!({})).await;
    assert_eq!(world.parent("10.96.3.3"), None);

    // Made by hand, it keeps its address from Services.
    let by_hand = json!({"metadata": {"name": "10.96.3.3"}, "spec": {"parentRef":
        {"group": "", "resource": "services", "namespace": "default", "name": "later"}}});
    world.expect(201, Method::POST, ADDRESSES, &by_hand).await;
    let why = world
        .expect(422, Method::POST, SERVICES, &service("web", "10.96.3.3"))
        .await;
    assert!(why.contains("already allocated"), "{why}");
    world.expect(200, Method::DELETE, &shown, &json!({})).await;
    world
        .expect(201, Method::POST, SERVICES, &service("web", "10.96.3.3"))
        .await;
}

#[tokio::test]
async fn a_range_is_drawn_from_while_it_is_ready_and_goes_after_its_last_address() {
    let world = World::new().await;
    let far = service("far", "10.200.0.5");
    let why = world.expect(422, Method::POST, SERVICES, &far).await;
    assert!(why.contains("not in the valid range"), "{why}");
    world
        .expect(422, Method::POST, RANGES, &range("10.200.0.1/24"))
        .await;
    world
        .expect(201, Method::POST, RANGES, &range("10.200.0.0/24"))
        .await;

    let status = |ready: &str| {
        json!({"status": {"conditions": [{"type": "Ready", "status": ready, "reason": "Tested",
        "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}})
    };
    let (more, of_more) = (format!("{RANGES}/more"), format!("{RANGES}/more/status"));
    world.expect(200, Method::PATCH, &of_more, &status("False")).await;
    world.expect(422, Method::POST, SERVICES, &far).await;
    world.expect(200, Method::PATCH, &of_more, &status("True")).await;
    world.expect(201, Method::POST, SERVICES, &far).await;

    world.expect(200, Method::DELETE, &more, &json!({})).await;
    world
        .expect(422, Method::POST, SERVICES, &service("late", "10.200.0.6"))
        .await;
    world.release("more", 10).await;
    let condition = &world.range("more").unwrap().value()["status"]["conditions"][0];
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("False"), &json!("Terminating"))
    );
    world
        .expect(200, Method::DELETE, &format!("{SERVICES}/far"), &json!({}))
        .await;
    world.release("more", 0).await;
    assert!(
        world.range("more").is_some(),
        "another server may be about to take an address"
    );
    world.release("more", 10).await;
    assert!(world.range("more").is_none());

    // The ranges of the flag stay, whatever becomes of the object that shows them.
    world
        .expect(200, Method::DELETE, &format!("{RANGES}/kubernetes"), &json!({}))
        .await;
    world.release("kubernetes", 10).await;
    assert!(world.range("kubernetes").is_some());
    world
        .expect(201, Method::POST, SERVICES, &service("near", "10.96.3.3"))
        .await;
}

#[tokio::test]
async fn when_a_range_is_full_addresses_come_from_the_next_one() {
    let world = World::with(|config| config.cluster.service_ranges[0].prefix = 30).await;
    world
        .expect(201, Method::POST, SERVICES, &service("last", ""))
        .await;
    let (_, why) = world
        .ask(&admin(), Method::POST, SERVICES, &service("more", ""))
        .await;
    assert!(why.contains("range 10.96.0.0/30 is full"), "{why}");
    world
        .expect(201, Method::POST, RANGES, &range("10.200.0.0/24"))
        .await;
    world
        .expect(201, Method::POST, SERVICES, &service("more", ""))
        .await;
    let more = world
        .server
        .find(&kinds::SERVICE, "default", "more")
        .unwrap()
        .value();
    assert!(
        more["spec"]["clusterIP"]
            .as_str()
            .unwrap()
            .starts_with("10.200.0.")
    );
}

#[tokio::test]
async fn a_start_shows_the_addresses_that_a_store_of_before_does_not() {
    let world = World::new().await;
    let at = |address: &str| keys::object(&IP_ADDRESS, "", address).into();
    let stray = crate::write::allocation::shown("10.96.9.9".parse().unwrap(), "default/gone");
    let ops = vec![Op::Delete(at("10.96.0.1")), Op::Put(at("10.96.9.9"), stray)];
    world
        .server
        .store
        .commit(Transaction {
            expect: Vec::new(),
            ops,
        })
        .await
        .unwrap();
    world.up_to_date().await;
    assert!(world.parent("10.96.0.1").is_none() && world.parent("10.96.9.9").is_some());
    repair::run(&world.server).await.unwrap();
    world.up_to_date().await;
    assert!(world.parent("10.96.0.1").is_some() && world.parent("10.96.9.9").is_none());
}
