//! How are instructions written and read?

use super::data_wire::{decode_name, decode_value, decode_verdict, encode_value, encode_verdict};
use super::expr::{
    CmpOp, CtDirection, CtKey, DynsetOp, Expr, FibFlags, FibResult, LookupTarget, MetaKey, NatKind,
    PayloadBase, RangeOp, Register, RejectKind,
};
use super::name::{Family, Name};
use super::value::Value;
use super::wire::{
    self, bitwise, cmp, counter, ct, dynset, fib, immediate, lookup, masq, meta, nat, numgen, payload, range,
    reject,
};
use crate::netlink::{Attribute, Attributes, Malformed, Writer};

impl Expr {
    /// Writes the instruction as one attribute of a rule's list.
    pub(super) fn encode(&self, writer: &mut Writer) {
        writer.nest(wire::LIST_ELEM, |elem| {
            elem.text(wire::expr::NAME, self.kernel_name());
            match self {
                Self::Other { attributes, .. } => {
                    elem.bytes_attribute(wire::expr::DATA | wire::NESTED, attributes)
                }
                ours => elem.nest(wire::expr::DATA, |data| ours.encode_operands(data)),
            }
        });
    }

    /// The name the kernel knows the instruction by.
    pub fn kernel_name(&self) -> &str {
        match self {
            Self::Payload { .. } => "payload",
            Self::Meta { .. } | Self::MetaSet { .. } => "meta",
            Self::Ct { .. } => "ct",
            Self::Cmp { .. } => "cmp",
            Self::Range { .. } => "range",
            Self::Bitwise { .. } => "bitwise",
            Self::Lookup { .. } => "lookup",
            Self::Load { .. } | Self::Verdict(_) => "immediate",
            Self::Numgen { .. } => "numgen",
            Self::Nat { .. } => "nat",
            Self::Masquerade { .. } => "masq",
            Self::Fib { .. } => "fib",
            Self::Counter { .. } => "counter",
            Self::Reject { .. } => "reject",
            Self::Dynset { .. } => "dynset",
            Self::Other { name, .. } => name,
        }
    }

    /// In the order in which the kernel lists them. Without a catch-all, so that a new instruction cannot be forgotten.
    fn encode_operands(&self, w: &mut Writer) {
        match self {
            Self::Payload {
                dreg,
                base,
                offset,
                len,
            } => {
                w.u32_be(payload::DREG, dreg.number());
                w.u32_be(payload::BASE, base.number());
                w.u32_be(payload::OFFSET, *offset);
                w.u32_be(payload::LEN, *len);
            }
            Self::Meta { dreg, key } => {
                w.u32_be(meta::KEY, key.number());
                w.u32_be(meta::DREG, dreg.number());
            }
            Self::MetaSet { sreg, key } => {
                w.u32_be(meta::KEY, key.number());
                w.u32_be(meta::SREG, sreg.number());
            }
            Self::Ct { dreg, key, direction } => encode_ct(w, *dreg, *key, *direction),
            Self::Cmp { sreg, op, value } => {
                w.u32_be(cmp::SREG, sreg.number());
                w.u32_be(cmp::OP, op.number());
                encode_value(w, cmp::DATA, value);
            }
            Self::Range { sreg, op, from, to } => {
                w.u32_be(range::SREG, sreg.number());
                w.u32_be(range::OP, op.number());
                encode_value(w, range::FROM, from);
                encode_value(w, range::TO, to);
            }
            Self::Bitwise {
                sreg,
                dreg,
                mask,
                xor,
            } => encode_bitwise(w, *sreg, *dreg, (mask, xor)),
            Self::Lookup {
                set,
                sreg,
                target,
                invert,
            } => encode_lookup(w, set, *sreg, *target, *invert),
            Self::Load { dreg, value } => {
                w.u32_be(immediate::DREG, dreg.number());
                encode_value(w, immediate::DATA, value);
            }
            Self::Verdict(verdict) => {
                w.u32_be(immediate::DREG, wire::VERDICT_REGISTER);
                encode_verdict(w, immediate::DATA, verdict);
            }
            Self::Numgen {
                dreg,
                modulus,
                random,
                offset,
            } => {
                w.u32_be(numgen::DREG, dreg.number());
                w.u32_be(numgen::MODULUS, *modulus);
                w.u32_be(numgen::TYPE, u32::from(*random));
                w.u32_be(numgen::OFFSET, *offset);
            }
            Self::Nat {
                kind,
                family,
                address,
                port,
                flags,
            } => {
                w.u32_be(nat::TYPE, kind.number());
                w.u32_be(nat::FAMILY, u32::from(family.number()));
                encode_register(w, nat::REG_ADDR_MIN, *address);
                encode_register(w, nat::REG_PROTO_MIN, *port);
                encode_flags(w, nat::FLAGS, *flags);
            }
            Self::Masquerade { flags } => encode_flags(w, masq::FLAGS, *flags),
            Self::Fib { dreg, result, flags } => {
                w.u32_be(fib::DREG, dreg.number());
                w.u32_be(fib::RESULT, result.number());
                w.u32_be(fib::FLAGS, flags.0);
            }
            Self::Counter { packets, bytes } => {
                w.u64_be(counter::BYTES, *bytes);
                w.u64_be(counter::PACKETS, *packets);
            }
            Self::Reject { kind, code } => {
                w.u32_be(reject::TYPE, kind.number());
                w.u8(reject::ICMP_CODE, *code);
            }
            Self::Dynset {
                set,
                op,
                key,
                data,
                timeout_ms,
            } => {
                w.text(dynset::SET_NAME, set.as_str());
                w.u32_be(dynset::OP, op.number());
                w.u32_be(dynset::SREG_KEY, key.number());
                encode_register(w, dynset::SREG_DATA, *data);
                if let Some(timeout) = timeout_ms {
                    w.u64_be(dynset::TIMEOUT, *timeout);
                }
            }
            // `encode` writes its attributes as they were read.
            Self::Other { .. } => {}
        }
    }

    /// Reads one attribute of a rule's list.
    pub fn decode(attribute: &Attribute<'_>) -> Result<Self, Malformed> {
        let mut name = None;
        let mut operands: &[u8] = &[];
        for part in attribute.nested() {
            let part = part?;
            match part.kind {
                wire::expr::NAME => name = Some(part.text()?),
                wire::expr::DATA => operands = part.value,
                _ => {}
            }
        }
        let name = name.ok_or(Malformed("an expression without a name"))?;
        let fields = Operands::read(operands)?;
        Ok(fields.decode(name)?.unwrap_or_else(|| Self::Other {
            name: name.into(),
            attributes: operands.into(),
        }))
    }
}

fn encode_ct(w: &mut Writer, dreg: Register, key: CtKey, direction: Option<CtDirection>) {
    w.u32_be(ct::KEY, key.number());
    w.u32_be(ct::DREG, dreg.number());
    if let Some(direction) = direction {
        w.u8(ct::DIRECTION, direction.number() as u8);
    }
}

fn encode_bitwise(w: &mut Writer, sreg: Register, dreg: Register, (mask, xor): (&Value, &Value)) {
    w.u32_be(bitwise::SREG, sreg.number());
    w.u32_be(bitwise::DREG, dreg.number());
    w.u32_be(bitwise::LEN, mask.len() as u32);
    encode_value(w, bitwise::MASK, mask);
    encode_value(w, bitwise::XOR, xor);
}

fn encode_lookup(w: &mut Writer, set: &Name, sreg: Register, target: LookupTarget, invert: bool) {
    w.text(lookup::SET, set.as_str());
    w.u32_be(lookup::SREG, sreg.number());
    match target {
        LookupTarget::Membership => {}
        LookupTarget::Data(dreg) => w.u32_be(lookup::DREG, dreg.number()),
        LookupTarget::Verdict => w.u32_be(lookup::DREG, wire::VERDICT_REGISTER),
    }
    encode_flags(w, lookup::FLAGS, if invert { lookup::FLAG_INVERT } else { 0 });
}

fn encode_register(w: &mut Writer, kind: u16, register: Option<Register>) {
    if let Some(register) = register {
        w.u32_be(kind, register.number());
    }
}

fn encode_flags(w: &mut Writer, kind: u16, flags: u32) {
    if flags != 0 {
        w.u32_be(kind, flags);
    }
}

const OPERANDS: usize = wire::expr::MAX_OPERAND as usize + 1;

/// The attributes of one instruction by number.
struct Operands<'a> {
    by_kind: [Option<Attribute<'a>>; OPERANDS],
}

impl<'a> Operands<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut by_kind = [None; OPERANDS];
        for attribute in Attributes::new(bytes) {
            let attribute = attribute?;
            if let Some(slot) = by_kind.get_mut(usize::from(attribute.kind)) {
                *slot = Some(attribute);
            }
        }
        Ok(Self { by_kind })
    }

    /// `None` if the instruction, or the use it is put to here, is not one of ours.
    fn decode(&self, name: &str) -> Result<Option<Expr>, Malformed> {
        Ok(match name {
            "payload" if self.has(payload::DREG) => self.payload()?,
            "meta" if self.has(meta::SREG) => self.meta_set()?,
            "meta" => self.meta()?,
            "ct" if self.has(ct::DREG) => self.ct()?,
            "cmp" => self.cmp()?,
            "range" => self.range()?,
            "bitwise" if self.has(bitwise::MASK) && self.has(bitwise::XOR) => self.bitwise()?,
            "lookup" => self.lookup()?,
            "immediate" => self.immediate()?,
            "numgen" => self.numgen()?,
            "nat" => self.nat()?,
            "masq" if !self.has(masq::REG_PROTO_MIN) => Some(Expr::Masquerade {
                flags: self.number_or(masq::FLAGS, 0)?,
            }),
            "fib" => self.fib()?,
            "counter" => Some(Expr::Counter {
                bytes: self.at(counter::BYTES)?.u64_be()?,
                packets: self.at(counter::PACKETS)?.u64_be()?,
            }),
            "reject" => RejectKind::from_number(self.number(reject::TYPE)?).map(|kind| Expr::Reject {
                kind,
                code: self
                    .get(reject::ICMP_CODE)
                    .and_then(|code| code.u8().ok())
                    .unwrap_or(0),
            }),
            "dynset" => self.dynset()?,
            _ => None,
        })
    }

    fn get(&self, kind: u16) -> Option<Attribute<'a>> {
        self.by_kind[usize::from(kind)]
    }

    fn has(&self, kind: u16) -> bool {
        self.get(kind).is_some()
    }

    fn at(&self, kind: u16) -> Result<Attribute<'a>, Malformed> {
        self.get(kind).ok_or(Malformed("an expression lacks an operand"))
    }

    fn number(&self, kind: u16) -> Result<u32, Malformed> {
        self.at(kind)?.u32_be()
    }

    fn number_or(&self, kind: u16, default: u32) -> Result<u32, Malformed> {
        self.get(kind).map_or(Ok(default), |attribute| attribute.u32_be())
    }

    fn register(&self, kind: u16) -> Result<Register, Malformed> {
        Register::from_number(self.number(kind)?).ok_or(Malformed("no such register"))
    }

    fn optional_register(&self, kind: u16) -> Result<Option<Register>, Malformed> {
        self.has(kind).then(|| self.register(kind)).transpose()
    }

    fn payload(&self) -> Result<Option<Expr>, Malformed> {
        let (dreg, offset, len) = (
            self.register(payload::DREG)?,
            self.number(payload::OFFSET)?,
            self.number(payload::LEN)?,
        );
        Ok(
            PayloadBase::from_number(self.number(payload::BASE)?).map(|base| Expr::Payload {
                dreg,
                base,
                offset,
                len,
            }),
        )
    }

    fn meta(&self) -> Result<Option<Expr>, Malformed> {
        let dreg = self.register(meta::DREG)?;
        Ok(MetaKey::from_number(self.number(meta::KEY)?).map(|key| Expr::Meta { dreg, key }))
    }

    fn meta_set(&self) -> Result<Option<Expr>, Malformed> {
        let sreg = self.register(meta::SREG)?;
        Ok(MetaKey::from_number(self.number(meta::KEY)?).map(|key| Expr::MetaSet { sreg, key }))
    }

    fn ct(&self) -> Result<Option<Expr>, Malformed> {
        let dreg = self.register(ct::DREG)?;
        let direction = match self.get(ct::DIRECTION) {
            Some(attribute) => CtDirection::from_number(u32::from(attribute.u8()?)),
            None => None,
        };
        Ok(CtKey::from_number(self.number(ct::KEY)?).map(|key| Expr::Ct { dreg, key, direction }))
    }

    fn cmp(&self) -> Result<Option<Expr>, Malformed> {
        let (sreg, value) = (self.register(cmp::SREG)?, decode_value(&self.at(cmp::DATA)?)?);
        Ok(CmpOp::from_number(self.number(cmp::OP)?).map(|op| Expr::Cmp { sreg, op, value }))
    }

    fn range(&self) -> Result<Option<Expr>, Malformed> {
        let sreg = self.register(range::SREG)?;
        let (from, to) = (
            decode_value(&self.at(range::FROM)?)?,
            decode_value(&self.at(range::TO)?)?,
        );
        Ok(RangeOp::from_number(self.number(range::OP)?).map(|op| Expr::Range { sreg, op, from, to }))
    }

    fn bitwise(&self) -> Result<Option<Expr>, Malformed> {
        let (sreg, dreg) = (self.register(bitwise::SREG)?, self.register(bitwise::DREG)?);
        let (mask, xor) = (
            decode_value(&self.at(bitwise::MASK)?)?,
            decode_value(&self.at(bitwise::XOR)?)?,
        );
        // The kernel repeats the length; a mask of another length is not one we could write again.
        let consistent = self.number(bitwise::LEN)? as usize == mask.len() && mask.len() == xor.len();
        Ok(
            (consistent && self.number_or(bitwise::OP, 0)? == 0).then_some(Expr::Bitwise {
                sreg,
                dreg,
                mask,
                xor,
            }),
        )
    }

    fn lookup(&self) -> Result<Option<Expr>, Malformed> {
        let set = decode_name(&self.at(lookup::SET)?)?;
        let sreg = self.register(lookup::SREG)?;
        let target = match self.get(lookup::DREG) {
            None => LookupTarget::Membership,
            Some(dreg) if dreg.u32_be()? == wire::VERDICT_REGISTER => LookupTarget::Verdict,
            Some(_) => LookupTarget::Data(self.register(lookup::DREG)?),
        };
        let flags = self.number_or(lookup::FLAGS, 0)?;
        Ok((flags <= lookup::FLAG_INVERT).then_some(Expr::Lookup {
            set,
            sreg,
            target,
            invert: flags == lookup::FLAG_INVERT,
        }))
    }

    fn immediate(&self) -> Result<Option<Expr>, Malformed> {
        let data = self.at(immediate::DATA)?;
        if self.number(immediate::DREG)? == wire::VERDICT_REGISTER {
            Ok(decode_verdict(&data)?.map(Expr::Verdict))
        } else {
            Ok(Some(Expr::Load {
                dreg: self.register(immediate::DREG)?,
                value: decode_value(&data)?,
            }))
        }
    }

    fn numgen(&self) -> Result<Option<Expr>, Malformed> {
        let (dreg, modulus, offset) = (
            self.register(numgen::DREG)?,
            self.number(numgen::MODULUS)?,
            self.number_or(numgen::OFFSET, 0)?,
        );
        let random = match self.number(numgen::TYPE)? {
            0 => false,
            1 => true,
            _ => return Ok(None),
        };
        Ok(Some(Expr::Numgen {
            dreg,
            modulus,
            random,
            offset,
        }))
    }

    fn nat(&self) -> Result<Option<Expr>, Malformed> {
        let Ok(family) = u8::try_from(self.number(nat::FAMILY)?) else {
            return Err(Malformed("no such family"));
        };
        let (address, port) = (
            self.optional_register(nat::REG_ADDR_MIN)?,
            self.optional_register(nat::REG_PROTO_MIN)?,
        );
        // The kernel fills in the ends of ranges; a range that is more than one value is not ours.
        let single = |end: Option<Register>, start| end.is_none() || end == start;
        if !single(self.optional_register(nat::REG_ADDR_MAX)?, address)
            || !single(self.optional_register(nat::REG_PROTO_MAX)?, port)
        {
            return Ok(None);
        }
        // The two lowest bits say that an address and a port are given, which we know.
        let flags = self.number_or(nat::FLAGS, 0)? & !nat::FLAGS_GIVEN;
        let kind = NatKind::from_number(self.number(nat::TYPE)?);
        Ok(kind
            .zip(Family::from_number(family))
            .map(|(kind, family)| Expr::Nat {
                kind,
                family,
                address,
                port,
                flags,
            }))
    }

    fn fib(&self) -> Result<Option<Expr>, Malformed> {
        let (dreg, flags) = (self.register(fib::DREG)?, FibFlags(self.number(fib::FLAGS)?));
        Ok(FibResult::from_number(self.number(fib::RESULT)?).map(|result| Expr::Fib { dreg, result, flags }))
    }

    fn dynset(&self) -> Result<Option<Expr>, Malformed> {
        if self.has(dynset::EXPR) {
            // Elements with expressions of their own are not ours.
            return Ok(None);
        }
        let (set, key) = (
            decode_name(&self.at(dynset::SET_NAME)?)?,
            self.register(dynset::SREG_KEY)?,
        );
        let data = self.optional_register(dynset::SREG_DATA)?;
        // The kernel reports a timeout of zero for operations without one.
        let timeout_ms = match self.get(dynset::TIMEOUT) {
            Some(timeout) => Some(timeout.u64_be()?).filter(|timeout| *timeout != 0),
            None => None,
        };
        Ok(
            DynsetOp::from_number(self.number(dynset::OP)?).map(|op| Expr::Dynset {
                set,
                op,
                key,
                data,
                timeout_ms,
            }),
        )
    }
}
