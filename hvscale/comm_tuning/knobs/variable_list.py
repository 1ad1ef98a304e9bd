"""Variables that list several NAME=VALUE, one of which is a knob: GLIBC_TUNABLES."""


def members(text: str, separator: str) -> list[str]:
    return [one for one in text.split(separator) if one]


def name_of(member: str) -> str:
    return member.partition("=")[0]


def with_member(text: str, member: str, separator: str) -> str:
    """The list with this member in place of any of the same name."""
    others = [one for one in members(text, separator) if name_of(one) != name_of(member)]
    return separator.join([*others, member])


def member_like(text: str, default: str, separator: str) -> str:
    """The last member with the name of `default`, which is the one that counts; else `default`."""
    return next((one for one in reversed(members(text, separator)) if name_of(one) == name_of(default)), default)


def has_member(text: str, name: str, separator: str) -> bool:
    return any(name_of(one) == name for one in members(text, separator))


def is_within(text: str, other: str, separator: str) -> bool:
    """Whether `other` has all members of the list."""
    return set(members(text, separator)) <= set(members(other, separator))
