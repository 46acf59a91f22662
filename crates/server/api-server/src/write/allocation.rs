//! Which addresses and ports does a Service hold, and who else may not have them?
//!
//! A claim is a key of its own, written in the same transaction as the Service on the condition that
//! nobody has it. So two Services can never share an address, whichever servers wrote them, and a crash
//! cannot separate a Service from its claims. With the claim on an address goes an IPAddress that shows it.

use super::metadata;
use crate::cache::Cache;
use crate::server::Server;
use crate::{keys, stored};
use bytes::Bytes;
use jiff::Timestamp;
use pointsman_rules::allocation::{self, Claim, InUse, objects};
use pointsman_rules::kinds::declared::{IP_ADDRESS, SERVICE_CIDR};
use pointsman_rules::status::Subject;
use pointsman_rules::strategy::{ClusterSettings, IpRange};
use pointsman_rules::value::str_at;
use pointsman_rules::{ApiError, Kind, kinds};
use pointsman_store::{Expect, Op, Transaction};
use serde_json::Value;
use std::net::IpAddr;
use std::sync::Arc;

/// The claims that a write takes and releases.
#[derive(Clone, Debug, Default)]
pub struct ClaimKeys {
    take: Vec<Claim>,
    release: Vec<Claim>,
}

impl ClaimKeys {
    /// Adds the claims to the transaction that writes their holder.
    pub fn add_to(self, transaction: &mut Transaction, holder: &Arc<str>) {
        let mut take = |key: Arc<str>, value: Bytes| {
            transaction.expect.push((key.clone(), Expect::Absent));
            transaction.ops.push(Op::Put(key, value));
        };
        for claim in self.take {
            take(store_key(&claim), Bytes::copy_from_slice(holder.as_bytes()));
            if let (Claim::Address(address), Some((_, service))) = (claim, keys::parse(holder)) {
                take(shown_at(address), shown(address, service));
            }
        }
        for claim in self.release {
            transaction.ops.push(Op::Delete(store_key(&claim)));
            if let Claim::Address(address) = claim {
                transaction.ops.push(Op::Delete(shown_at(address)));
            }
        }
    }
}

/// Where the IPAddress of an address is stored.
pub fn shown_at(address: IpAddr) -> Arc<str> {
    keys::object(&IP_ADDRESS, "", &address.to_string()).into()
}

/// The new IPAddress of an address, as it is stored; `service` is the `namespace/name` of its holder.
pub fn shown(address: IpAddr, service: &str) -> Bytes {
    let (namespace, name) = service.split_once('/').unwrap_or_default();
    let mut object = objects::ip_address(address, namespace, name);
    let uid = uuid::Uuid::new_v4().to_string();
    metadata::prepare_create(&mut object, uid, None, Timestamp::now());
    stored::encode(&IP_ADDRESS, &object)
}

struct Claimed<'a>(&'a Cache);

impl InUse for Claimed<'_> {
    fn holds(&self, claim: &Claim) -> bool {
        let shown = || match claim {
            Claim::Address(address) => self.0.of(&IP_ADDRESS).get(&address.to_string()).is_some(),
            Claim::NodePort(_) => false,
        };
        self.0.claim(&store_key(claim)).is_some() || shown()
    }
}

/// The store key of a claim.
pub fn store_key(claim: &Claim) -> Arc<str> {
    format!("{}{}", keys::CLAIMS, claim.key()).into()
}

impl Server {
    /// Fills in the addresses and ports of a Service that is created or changed; other kinds hold none.
    pub fn allocate(&self, kind: &Kind, new: &mut Value, old: Option<&Value>) -> Result<ClaimKeys, ApiError> {
        if kind != &kinds::SERVICE {
            return Ok(ClaimKeys::default());
        }
        let mut pick = |below| self.random_below(below);
        let cluster = ClusterSettings {
            service_ranges: self.open_ranges(""),
            ..self.cluster
        };
        let plan = allocation::plan(new, old, &cluster, &Claimed(&self.cache), &mut pick);
        let plan =
            plan.map_err(|errors| ApiError::invalid(kind, str_at(new, &["metadata", "name"]), errors))?;
        Ok(ClaimKeys {
            take: plan.claim,
            release: plan.release,
        })
    }

    /// The ranges from which new addresses may come, but for those of the ServiceCIDR `but`.
    pub fn open_ranges(&self, but: &str) -> Vec<IpRange> {
        let mut ranges = Vec::new();
        if but != objects::CONFIGURED {
            ranges.extend_from_slice(&self.cluster.service_ranges);
        }
        let all = self
            .cache
            .of(&SERVICE_CIDR)
            .list("", None, self.cache.applied())
            .objects;
        let added = all
            .iter()
            .filter(|range| ![objects::CONFIGURED, but].contains(&range.name()));
        ranges.extend(added.flat_map(|range| objects::open_ranges(&range.value())));
        ranges
    }

    /// The claims to release with a Service that is removed.
    pub fn release(&self, kind: &Kind, object: &Value) -> ClaimKeys {
        if kind != &kinds::SERVICE {
            return ClaimKeys::default();
        }
        ClaimKeys {
            take: Vec::new(),
            release: allocation::claims_of(object),
        }
    }

    /// Refuses to take an IPAddress from the Service that holds it: it goes with the Service's claim.
    pub fn protect_address(&self, kind: &'static Kind, name: &str) -> Result<(), ApiError> {
        let address = name.parse().ok().filter(|_| kind == &IP_ADDRESS);
        let Some(holder) = address.and_then(|address| self.cache.claim(&store_key(&Claim::Address(address))))
        else {
            return Ok(());
        };
        let holder = String::from_utf8_lossy(&holder);
        let service = keys::parse(&holder).map_or("", |(_, service)| service);
        Err(ApiError::Forbidden {
            subject: Subject::new(kind, name),
            why: format!("the Service {service} has this address, and gives it back when it is deleted"),
            cause: None,
        })
    }
}
