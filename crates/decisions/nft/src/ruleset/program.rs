//! How are matches and statements put together from instructions?

use std::marker::PhantomData;

use pointsman_dataplane::LocalDetector;
use pointsman_model::{Address, Cidr, IpFamily, Protocol};
use pointsman_netlink::nft::{
    CmpOp, CtKey, DynsetOp, Expr, FibFlags, FibResult, LookupTarget, MetaKey, Name, NatKind, PayloadBase,
    Register, RejectKind, Value, Verdict,
};

use super::family;
use crate::key;
use crate::pool::Pool;
use crate::set_id::SetId;

/// Status bit of a connection whose destination was translated.
const CT_STATUS_DST_NAT: u32 = 1 << 5;

/// The instructions of one rule, written as `nft` writes them: a concatenation fills registers from the
/// first one on, a map's data replaces its key.
#[derive(Debug)]
pub(super) struct Program<A> {
    exprs: Vec<Expr>,
    family: PhantomData<A>,
}

#[derive(Clone, Copy)]
pub(super) enum Side {
    Source,
    Destination,
}

impl<A: Address> Program<A> {
    pub fn new() -> Self {
        Self {
            exprs: Vec::new(),
            family: PhantomData,
        }
    }

    pub fn finish(self) -> Vec<Expr> {
        self.exprs
    }

    fn with(mut self, exprs: impl IntoIterator<Item = Expr>) -> Self {
        self.exprs.extend(exprs);
        self
    }

    /// `@set` with the key in the registers from the first one on.
    fn member(self, set: SetId, invert: bool) -> Self {
        let lookup = Expr::Lookup {
            set: set.name(),
            sreg: r(0),
            target: LookupTarget::Membership,
            invert,
        };
        self.with([lookup])
    }

    /// `daddr @set`
    pub fn destination_in(self, set: SetId) -> Self {
        self.with([address::<A>(Side::Destination, 0)]).member(set, false)
    }

    /// `daddr . l4proto . dport @set`, or without the address.
    pub fn key_in(self, pool: Pool, set: SetId) -> Self {
        let (exprs, _) = destination::<A>(pool, 0);
        self.with(exprs).member(set, false)
    }

    /// `daddr . l4proto . dport . saddr @set`
    pub fn key_and_source_in(self, set: SetId) -> Self {
        let (exprs, next) = destination::<A>(Pool::Address, 0);
        self.with(exprs)
            .with([address::<A>(Side::Source, next)])
            .member(set, false)
    }

    /// `meta l4proto protocol`
    pub fn protocol_is(self, protocol: Protocol) -> Self {
        self.with([
            Expr::Meta {
                dreg: r(0),
                key: MetaKey::L4Proto,
            },
            Expr::Cmp {
                sreg: r(0),
                op: CmpOp::Eq,
                value: Value::try_new(&[protocol.number()]).expect("one byte fits"),
            },
        ])
    }

    /// `counter`, for the packets that get this far in the rule.
    pub fn counted(self) -> Self {
        self.with([Expr::Counter { packets: 0, bytes: 0 }])
    }

    /// `saddr . daddr @set`
    pub fn source_and_destination_in(self, set: SetId) -> Self {
        let addresses = [
            address::<A>(Side::Source, 0),
            address::<A>(Side::Destination, words::<A>()),
        ];
        self.with(addresses).member(set, false)
    }

    /// `fib saddr type local` or `fib daddr type local`
    pub fn if_local(self, side: Side) -> Self {
        let flags = match side {
            Side::Source => FibFlags::SADDR,
            Side::Destination => FibFlags::DADDR,
        };
        self.with([
            Expr::Fib {
                dreg: r(0),
                result: FibResult::AddressType,
                flags,
            },
            Expr::Cmp {
                sreg: r(0),
                op: CmpOp::Eq,
                value: Value::host_u32(Expr::FIB_LOCAL),
            },
        ])
    }

    /// `saddr range`, or with `Neq` its opposite.
    pub fn address_is(self, side: Side, op: CmpOp, range: &Cidr<A>) -> Self {
        let octets = range.network().octets();
        let octets = octets.as_ref();
        let prefix = usize::from(range.prefix());
        let bytes = prefix.div_ceil(8).max(1);
        let whole = prefix == bytes * 8;
        let network = Value::try_new(&octets[..bytes]).expect("an address fits");
        let mut exprs = vec![Expr::Payload {
            dreg: r(0),
            base: PayloadBase::Network,
            offset: offset::<A>(side),
            len: bytes as u32,
        }];
        if !whole {
            let last = 0xffu8
                .checked_shl(8 - (prefix - (bytes - 1) * 8) as u32)
                .unwrap_or(0);
            let mut mask = vec![0xff; bytes];
            mask[bytes - 1] = last;
            exprs.push(Expr::Bitwise {
                sreg: r(0),
                dreg: r(0),
                mask: Value::try_new(&mask).expect("an address fits"),
                xor: Value::try_new(&vec![0; bytes]).expect("an address fits"),
            });
        }
        exprs.push(Expr::Cmp {
            sreg: r(0),
            op,
            value: network,
        });
        self.with(exprs)
    }

    /// The packet comes (or with `Neq` does not come) from a pod.
    pub fn if_from_pod(self, detector: &LocalDetector<A>, op: CmpOp) -> Self {
        let name = |text: &str, whole: bool| {
            // A whole name is compared with its terminating zeros, a beginning without.
            let mut bytes = text.as_bytes().to_vec();
            if whole {
                bytes.resize(16, 0);
            }
            Value::try_new(&bytes).expect("interface names have at most 15 bytes")
        };
        let interface = |value| {
            [
                Expr::Meta {
                    dreg: r(0),
                    key: MetaKey::InputName,
                },
                Expr::Cmp {
                    sreg: r(0),
                    op,
                    value,
                },
            ]
        };
        match detector {
            LocalDetector::Nothing => self,
            LocalDetector::Source(range) => self.address_is(Side::Source, op, range),
            LocalDetector::Bridge(bridge) => self.with(interface(name(bridge.as_str(), true))),
            LocalDetector::InterfacePrefix(prefix) => self.with(interface(name(prefix.as_str(), false))),
        }
    }

    /// `meta mark & bit != 0`
    pub fn if_marked(self, bit: u32) -> Self {
        self.with([
            Expr::Meta {
                dreg: r(0),
                key: MetaKey::Mark,
            },
            Expr::Bitwise {
                sreg: r(0),
                dreg: r(0),
                mask: Value::host_u32(bit),
                xor: Value::host_u32(0),
            },
            Expr::Cmp {
                sreg: r(0),
                op: CmpOp::Neq,
                value: Value::host_u32(0),
            },
        ])
    }

    /// `meta mark set (mark & mask) ^ xor`
    pub fn set_mark(self, mask: u32, xor: u32) -> Self {
        self.with([
            Expr::Meta {
                dreg: r(0),
                key: MetaKey::Mark,
            },
            Expr::Bitwise {
                sreg: r(0),
                dreg: r(0),
                mask: Value::host_u32(mask),
                xor: Value::host_u32(xor),
            },
            Expr::MetaSet {
                sreg: r(0),
                key: MetaKey::Mark,
            },
        ])
    }

    /// `ct status dnat`
    pub fn if_translated(self) -> Self {
        let bit = Value::host_u32(CT_STATUS_DST_NAT);
        self.with([
            Expr::Ct {
                dreg: r(0),
                key: CtKey::Status,
                direction: None,
            },
            Expr::Bitwise {
                sreg: r(0),
                dreg: r(0),
                mask: bit,
                xor: Value::host_u32(0),
            },
            Expr::Cmp {
                sreg: r(0),
                op: CmpOp::Neq,
                value: Value::host_u32(0),
            },
        ])
    }

    /// `daddr . l4proto . dport . numgen random mod range map @map`, the data in the first registers.
    pub fn draw(self, pool: Pool, range: u32, map: SetId) -> Self {
        let (exprs, next) = destination::<A>(pool, 0);
        let draw = Expr::Numgen {
            dreg: r(next),
            modulus: range,
            random: true,
            offset: 0,
        };
        self.with(exprs).with([draw, load_from(map)])
    }

    /// `daddr . l4proto . dport . meta priority map @map`, the data in the first registers.
    pub fn by_token(self, pool: Pool, map: SetId) -> Self {
        let (exprs, next) = destination::<A>(pool, 0);
        let token = Expr::Meta {
            dreg: r(next),
            key: MetaKey::Priority,
        };
        self.with(exprs).with([token, load_from(map)])
    }

    /// `saddr . meta priority map @affinity`, the token in the first register.
    pub fn by_client(self) -> Self {
        self.with(client::<A>()).with([load_from(SetId::Affinity)])
    }

    /// `meta priority set daddr . l4proto . dport map @sticky`; ends the rule where clients are not remembered.
    pub fn set_service_port(self, pool: Pool) -> Self {
        let (exprs, _) = destination::<A>(pool, 0);
        self.with(exprs)
            .with([load_from(SetId::Sticky(pool))])
            .set_priority()
    }

    /// `dnat to` the address and port in the first registers.
    pub fn dnat(self) -> Self {
        self.with([Expr::Nat {
            kind: NatKind::Destination,
            family: family::<A>(),
            address: Some(r(0)),
            port: Some(r(words::<A>())),
            flags: 0,
        }])
    }

    /// `meta priority set` the first register.
    pub fn set_priority(self) -> Self {
        self.with([Expr::MetaSet {
            sreg: r(0),
            key: MetaKey::Priority,
        }])
    }

    /// `update @affinity { saddr . meta priority & ffff:0 timeout … : meta priority }`
    pub fn remember(self, timeout_seconds: u32) -> Self {
        let number = r(words::<A>());
        self.with(client::<A>())
            .with([Expr::Bitwise {
                sreg: number,
                dreg: number,
                mask: Value::host_u32(0xffff_0000),
                xor: Value::host_u32(0),
            }])
            .change_affinity(DynsetOp::Update, Some(timeout_seconds))
    }

    /// `delete @affinity { saddr . meta priority : meta priority }`
    pub fn forget(self) -> Self {
        self.with(client::<A>()).change_affinity(DynsetOp::Delete, None)
    }

    /// Changes the element whose key is in the first registers.
    fn change_affinity(self, op: DynsetOp, timeout_seconds: Option<u32>) -> Self {
        let data = r(words::<A>() + 1);
        self.with([
            Expr::Meta {
                dreg: data,
                key: MetaKey::Priority,
            },
            Expr::Dynset {
                set: SetId::Affinity.name(),
                op,
                key: r(0),
                data: Some(data),
                timeout_ms: timeout_seconds.map(|seconds| u64::from(seconds) * 1000),
            },
        ])
    }

    pub fn masquerade(self) -> Self {
        self.with([Expr::Masquerade {
            flags: Expr::NAT_FULLY_RANDOM,
        }])
    }

    /// An ICMP port unreachable of the family.
    pub fn reject(self) -> Self {
        let code = match A::FAMILY {
            IpFamily::V4 => 3,
            IpFamily::V6 => 4,
        };
        self.with([Expr::Reject {
            kind: RejectKind::Icmp,
            code,
        }])
    }

    pub fn then(self, verdict: Verdict) -> Self {
        self.with([Expr::Verdict(verdict)])
    }

    pub fn goto(self, chain: Name) -> Self {
        self.then(Verdict::Goto(chain))
    }

    pub fn jump(self, chain: Name) -> Self {
        self.then(Verdict::Jump(chain))
    }
}

fn r(index: u8) -> Register {
    Register::fixed(index)
}

/// The registers an address fills.
fn words<A: Address>() -> u8 {
    A::BITS / 32
}

fn offset<A: Address>(side: Side) -> u32 {
    match (A::FAMILY, side) {
        (IpFamily::V4, Side::Source) => 12,
        (IpFamily::V4, Side::Destination) => 16,
        (IpFamily::V6, Side::Source) => 8,
        (IpFamily::V6, Side::Destination) => 24,
    }
}

fn address<A: Address>(side: Side, register: u8) -> Expr {
    Expr::Payload {
        dreg: r(register),
        base: PayloadBase::Network,
        offset: offset::<A>(side),
        len: u32::from(A::BITS / 8),
    }
}

/// Loads a destination from this register on; returns the next free one.
fn destination<A: Address>(pool: Pool, first: u8) -> (Vec<Expr>, u8) {
    let mut exprs = Vec::new();
    let mut next = first;
    if !pool.is_node_port() {
        exprs.push(address::<A>(Side::Destination, next));
        next += words::<A>();
    }
    exprs.push(Expr::Meta {
        dreg: r(next),
        key: MetaKey::L4Proto,
    });
    exprs.push(Expr::Payload {
        dreg: r(next + 1),
        base: PayloadBase::Transport,
        offset: 2,
        len: 2,
    });
    (exprs, next + 2)
}

/// Loads a client and the number of a Service port.
fn client<A: Address>() -> [Expr; 2] {
    let service_port = Expr::Meta {
        dreg: r(words::<A>()),
        key: MetaKey::Priority,
    };
    [address::<A>(Side::Source, 0), service_port]
}

fn load_from(map: SetId) -> Expr {
    Expr::Lookup {
        set: map.name(),
        sreg: r(0),
        target: LookupTarget::Data(r(0)),
        invert: false,
    }
}

/// The loopback range that node ports do not answer on.
pub(super) fn loopback<A: Address>() -> Cidr<A> {
    A::LOOPBACK
}

/// Addresses as the elements of a set.
pub(super) fn address_elements<A: Address>(addresses: &[A]) -> Vec<pointsman_netlink::nft::Element> {
    let mut addresses: Vec<A> = addresses
        .iter()
        .copied()
        .filter(|address| !A::LOOPBACK.contains(*address))
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
        .into_iter()
        .map(|address| pointsman_netlink::nft::Element::new(key::address(address)))
        .collect()
}
