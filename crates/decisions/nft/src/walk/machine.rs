//! What does each instruction do?

use std::net::IpAddr;

use pointsman_model::Address;
use pointsman_netlink::nft::{
    CmpOp, CtKey, Data, DynsetOp, Element, Expr, FibFlags, FibResult, Hook, LookupTarget, MetaKey, Name,
    NatKind, PayloadBase, RangeOp, Register, SetFlags, Value, Verdict,
};

use super::frame::Frame;
use super::{Lost, World};
use crate::intervals::interval_contains;
use crate::kernel_table::{KernelTable, SetContent};

/// The kernel's limit on nested jumps.
const MAX_JUMPS: usize = 16;
/// Status bit of a connection whose destination was translated.
const CT_STATUS_DST_NAT: u32 = 1 << 5;

/// How a base chain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Accepted,
    Dropped,
    Refused,
    Translated { to: IpAddr, port: u16 },
    Masqueraded,
}

/// How a rule or chain ended.
enum Step {
    /// With the next rule.
    Next,
    /// Back to the caller.
    Return,
    Jump(Name),
    Goto(Name),
    Done(Outcome),
}

pub(super) struct Machine<'a, 'w, A> {
    table: &'a KernelTable,
    world: &'a mut World<'w, A>,
    packet: Frame,
    translated: bool,
    registers: [u8; 64],
}

impl<'a, 'w, A: Address> Machine<'a, 'w, A> {
    pub fn new(table: &'a KernelTable, packet: Frame, world: &'a mut World<'w, A>) -> Self {
        Self {
            table,
            world,
            packet,
            translated: false,
            registers: [0; 64],
        }
    }

    /// The base chains of a hook, earliest first.
    pub fn base_chains(&self, hook: Hook) -> Vec<Name> {
        let mut chains: Vec<(i32, Name)> = self
            .table
            .chains
            .values()
            .filter_map(|content| content.chain.base.map(|base| (base, &content.chain.name)))
            .filter(|(base, _)| base.hook == hook)
            .map(|(base, name)| (base.priority, name.clone()))
            .collect();
        chains.sort();
        chains.into_iter().map(|(_, name)| name).collect()
    }

    pub fn translate(&mut self, to: IpAddr, port: u16) {
        self.packet.destination = to;
        self.packet.destination_port = port;
        self.translated = true;
    }

    pub fn lost(&self, chain: &Name, what: impl Into<String>) -> Lost {
        Lost {
            chain: chain.to_string(),
            what: what.into(),
        }
    }

    /// Runs a base chain to its end.
    pub fn run(&mut self, base: &Name) -> Result<Outcome, Lost> {
        let mut stack: Vec<(Name, usize)> = Vec::new();
        let mut at = (base.clone(), 0);
        loop {
            let (chain, index) = &mut at;
            let content = self
                .table
                .chains
                .get(chain)
                .ok_or_else(|| self.lost(chain, "no such chain"))?;
            let step = match content.rules.get(*index) {
                Some(rule) => {
                    *index += 1;
                    self.registers = [0; 64];
                    self.rule(chain, rule)?
                }
                None => Step::Return,
            };
            match step {
                Step::Next => {}
                Step::Done(outcome) => return Ok(outcome),
                Step::Goto(chain) => at = (chain, 0),
                Step::Jump(chain) => {
                    if stack.len() == MAX_JUMPS {
                        return Err(self.lost(&chain, "jumps are nested too deeply"));
                    }
                    stack.push(std::mem::replace(&mut at, (chain, 0)));
                }
                Step::Return => match stack.pop() {
                    Some(caller) => at = caller,
                    None => return Ok(Outcome::Accepted),
                },
            }
        }
    }

    fn rule(&mut self, chain: &Name, rule: &[Expr]) -> Result<Step, Lost> {
        for expr in rule {
            let matched = match expr {
                Expr::Verdict(verdict) => return Ok(step(verdict)),
                Expr::Lookup {
                    set,
                    sreg,
                    target,
                    invert,
                } => {
                    if *target == LookupTarget::Verdict {
                        match self.find(set, *sreg).map(|element| element.data) {
                            Some(Data::Verdict(verdict)) => return Ok(step(&verdict)),
                            _ => false,
                        }
                    } else {
                        self.lookup(set, *sreg, *target, *invert)
                    }
                }
                Expr::Nat {
                    kind: NatKind::Destination,
                    address: Some(address),
                    port: Some(port),
                    ..
                } => {
                    let to = self.address(*address);
                    let port = u16::from_be_bytes([self.byte(*port, 0), self.byte(*port, 1)]);
                    return Ok(Step::Done(Outcome::Translated { to, port }));
                }
                Expr::Masquerade { .. } => return Ok(Step::Done(Outcome::Masqueraded)),
                Expr::Reject { .. } => return Ok(Step::Done(Outcome::Refused)),
                Expr::Dynset {
                    set,
                    op,
                    key,
                    data,
                    timeout_ms,
                } => self.change_set(set, *op, *key, *data, *timeout_ms),
                other => self.load_or_compare(chain, other)?,
            };
            if !matched {
                return Ok(Step::Next);
            }
        }
        Ok(Step::Next)
    }

    fn load_or_compare(&mut self, chain: &Name, expr: &Expr) -> Result<bool, Lost> {
        match expr {
            Expr::Cmp { sreg, op, value } => Ok(self.compare(*sreg, *op, value)),
            Expr::Range { sreg, op, from, to } => {
                let bytes = self.bytes(*sreg, from.len());
                let within = bytes >= from.as_bytes() && bytes <= to.as_bytes();
                Ok(within == (*op == RangeOp::Within))
            }
            Expr::Counter { .. } => Ok(true),
            Expr::MetaSet { sreg, key } => {
                let number = self.number(*sreg);
                match key {
                    MetaKey::Mark => self.packet.mark = number,
                    MetaKey::Priority => self.packet.priority = number,
                    _ => return Err(self.lost(chain, "this cannot be set")),
                }
                Ok(true)
            }
            loading => {
                let loaded = self.load(chain, loading)?;
                if let Some((dreg, bytes)) = &loaded {
                    self.store(*dreg, bytes);
                }
                Ok(loaded.is_some())
            }
        }
    }

    fn compare(&self, sreg: Register, op: CmpOp, value: &Value) -> bool {
        let order = self.bytes(sreg, value.len()).cmp(value.as_bytes());
        match op {
            CmpOp::Eq => order.is_eq(),
            CmpOp::Neq => order.is_ne(),
            CmpOp::Lt => order.is_lt(),
            CmpOp::Lte => order.is_le(),
            CmpOp::Gt => order.is_gt(),
            CmpOp::Gte => order.is_ge(),
        }
    }

    /// Where an instruction puts which bytes; `None` if the packet does not have them.
    fn load(&mut self, chain: &Name, expr: &Expr) -> Result<Option<(Register, Vec<u8>)>, Lost> {
        let (dreg, bytes) = match expr {
            Expr::Payload {
                dreg,
                base,
                offset,
                len,
            } => {
                let header = match base {
                    PayloadBase::Network => self.packet.network_header(),
                    PayloadBase::Transport => self.packet.transport_header(),
                    PayloadBase::Link => return Err(self.lost(chain, "packets have no link header here")),
                };
                let (from, to) = (*offset as usize, (*offset + *len) as usize);
                return Ok(header.get(from..to).map(|bytes| (*dreg, bytes.to_vec())));
            }
            Expr::Meta { dreg, key } => (dreg, self.meta(*key)),
            Expr::Ct {
                dreg,
                key: CtKey::Status,
                ..
            } => {
                let status = if self.translated { CT_STATUS_DST_NAT } else { 0 };
                (dreg, status.to_ne_bytes().to_vec())
            }
            Expr::Fib {
                dreg,
                result: FibResult::AddressType,
                flags,
            } => (dreg, self.address_type(chain, *flags)?.to_ne_bytes().to_vec()),
            Expr::Numgen {
                dreg,
                modulus,
                offset,
                ..
            } => {
                let drawn = (self.world.random)(*modulus) + offset;
                (dreg, drawn.to_ne_bytes().to_vec())
            }
            Expr::Load { dreg, value } => (dreg, value.as_bytes().to_vec()),
            Expr::Bitwise {
                sreg,
                dreg,
                mask,
                xor,
            } => {
                let pairs = mask.as_bytes().iter().zip(xor.as_bytes());
                let source = self.bytes(*sreg, mask.len()).iter();
                let result = source.zip(pairs).map(|(byte, (mask, xor))| byte & mask ^ xor);
                (dreg, result.collect())
            }
            other => return Err(self.lost(chain, format!("unknown instruction {other:?}"))),
        };
        Ok(Some((*dreg, bytes)))
    }

    fn address_type(&self, chain: &Name, flags: FibFlags) -> Result<u32, Lost> {
        let address = match flags {
            FibFlags::SADDR => self.packet.source,
            FibFlags::DADDR => self.packet.destination,
            _ => return Err(self.lost(chain, "an unknown routing lookup")),
        };
        let local = A::narrow(address).is_some_and(|address| self.world.host.is_local(address));
        Ok(if local { Expr::FIB_LOCAL } else { 1 })
    }

    fn meta(&self, key: MetaKey) -> Vec<u8> {
        let name = |name: &str| {
            let mut bytes = name.as_bytes().to_vec();
            bytes.resize(16, 0);
            bytes
        };
        match key {
            MetaKey::Mark => self.packet.mark.to_ne_bytes().to_vec(),
            MetaKey::Priority => self.packet.priority.to_ne_bytes().to_vec(),
            MetaKey::L4Proto => vec![self.packet.protocol],
            MetaKey::InputName => name(&self.packet.interface),
            MetaKey::OutputName => name(""),
        }
    }

    fn lookup(&mut self, set: &Name, sreg: Register, target: LookupTarget, invert: bool) -> bool {
        let found = self.find(set, sreg);
        if let (
            Some(Element {
                data: Data::Value(value),
                ..
            }),
            LookupTarget::Data(dreg),
        ) = (&found, target)
        {
            self.store(dreg, value.as_bytes());
        }
        found.is_some() != invert
    }

    fn find(&self, set: &Name, sreg: Register) -> Option<Element> {
        let content = self.table.sets.get(set)?;
        let key = self.key(content, sreg);
        if content.set.flags.contains(SetFlags::CONCAT) {
            return content
                .elements
                .values()
                .find(|element| in_fields(content, element, &key))
                .cloned();
        }
        if content.set.flags.contains(SetFlags::INTERVAL) {
            return interval_contains(content.elements.values(), &key).then(|| Element::new(key));
        }
        let remembered = || self.world.memory.0.get(&(set.clone(), key));
        let element = content.elements.get(&(key, false)).or_else(remembered)?;
        let alive = element.expires_ms.is_none_or(|end| end > self.world.now_ms);
        alive.then(|| element.clone())
    }

    fn change_set(
        &mut self,
        set: &Name,
        op: DynsetOp,
        key: Register,
        data: Option<Register>,
        timeout_ms: Option<u64>,
    ) -> bool {
        let known = self.find(set, key);
        let Some(content) = self.table.sets.get(set) else {
            return false;
        };
        let key = self.key(content, key);
        let data = data.map_or(Data::None, |register| {
            Data::Value(Value::try_new(self.bytes(register, 4)).unwrap_or(Value::EMPTY))
        });
        let expires_ms = timeout_ms
            .or(content.set.timeout_ms)
            .map(|timeout| self.world.now_ms + timeout);
        let place = (set.clone(), key);
        match op {
            DynsetOp::Delete => {
                self.world.memory.0.remove(&place);
            }
            DynsetOp::Add | DynsetOp::Update => {
                // What is there keeps its data; an update restarts its time.
                let mut element = known.unwrap_or(Element {
                    data,
                    ..Element::new(key)
                });
                element.expires_ms = expires_ms;
                self.world.memory.0.insert(place, element);
            }
        }
        true
    }

    fn key(&self, content: &SetContent, sreg: Register) -> Value {
        Value::try_new(self.bytes(sreg, content.set.key_len as usize)).unwrap_or(Value::EMPTY)
    }

    fn bytes(&self, register: Register, len: usize) -> &[u8] {
        let start = register.index() * 4;
        &self.registers[start..(start + len).min(64)]
    }

    fn byte(&self, register: Register, at: usize) -> u8 {
        self.registers[register.index() * 4 + at]
    }

    fn number(&self, register: Register) -> u32 {
        self.bytes(register, 4)
            .first_chunk::<4>()
            .map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    fn address(&self, register: Register) -> IpAddr {
        match self.packet.destination {
            IpAddr::V4(_) => self
                .bytes(register, 4)
                .first_chunk::<4>()
                .copied()
                .unwrap_or_default()
                .into(),
            IpAddr::V6(_) => self
                .bytes(register, 16)
                .first_chunk::<16>()
                .copied()
                .unwrap_or_default()
                .into(),
        }
    }

    /// Writes whole registers, as the kernel does.
    fn store(&mut self, register: Register, bytes: &[u8]) {
        let start = register.index() * 4;
        let end = (start + bytes.len().next_multiple_of(4)).min(64);
        self.registers[start..end].fill(0);
        let end = (start + bytes.len()).min(64);
        self.registers[start..end].copy_from_slice(&bytes[..end - start]);
    }
}

fn step(verdict: &Verdict) -> Step {
    match verdict {
        Verdict::Drop => Step::Done(Outcome::Dropped),
        Verdict::Accept => Step::Done(Outcome::Accepted),
        Verdict::Continue => Step::Next,
        Verdict::Return => Step::Return,
        Verdict::Jump(chain) => Step::Jump(chain.clone()),
        Verdict::Goto(chain) => Step::Goto(chain.clone()),
    }
}

/// Whether each component of the key lies between those of the element's two keys.
fn in_fields(content: &SetContent, element: &Element, key: &Value) -> bool {
    let end = element.key_end.as_deref().unwrap_or(&element.key);
    let mut start = 0;
    content.set.key_fields.iter().all(|len| {
        let field = start..start + *len as usize;
        start += (*len as usize).next_multiple_of(4);
        let part = |value: &Value| value.as_bytes().get(field.clone()).map(<[u8]>::to_vec);
        part(&element.key) <= part(key) && part(key) <= part(end)
    })
}
