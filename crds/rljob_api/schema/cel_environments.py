"""CEL of environments: validation rules of the API server for `spec.environments`, by the path of their object."""

from __future__ import annotations

from rljob_api.schema.cel_changes import ENTRY_FIELDS, Rule, same

ENVIRONMENT_RULES: dict[str, list[Rule]] = {
    "spec.environments[]": [
        Rule(
            "(self.kind == 'Tools') == has(self.tools)",
            "tools are required for kind Tools, and for no other kind",
        ),
        Rule(
            "self.kind == 'Agent' ? has(self.command) != has(self.__function__)"
            " : !has(self.command) && !has(self.__function__)",
            "exactly one of command and function is required for kind Agent, and none for another kind",
        ),
        Rule(
            "(self.kind == 'OpenEnv') == has(self.openEnv)",
            "openEnv is required for kind OpenEnv, with its url, and for no other kind",
        ),
        Rule(
            "(self.kind == 'Verifiers') == has(self.verifiers)",
            "verifiers is required for kind Verifiers, with its id, and for no other kind",
        ),
        Rule("!has(self.state) || self.kind == 'Tools'", "state is for kind Tools only; leave it out"),
        Rule("!has(self.toolSeconds) || self.kind == 'Tools'", "toolSeconds is for kind Tools only; leave it out"),
        Rule("!has(self.reset) || self.kind == 'Agent'", "reset is for kind Agent only; leave it out"),
        Rule(
            "!has(self.checkout) || (has(self.reset) && self.reset == 'GitRestore')",
            "checkout needs reset: GitRestore; or leave it out",
        ),
        Rule(
            "!has(self.reset) || self.reset != 'Pod' || self.episodesPerRunner == 1",
            "episodesPerRunner must be 1 with reset: Pod",
        ),
        Rule("!has(self.minRunners) || self.minRunners <= self.runners", "minRunners must be at most runners"),
        Rule("!has(self.maxRunners) || self.maxRunners >= self.runners", "maxRunners must be at least runners"),
        *(
            Rule(same(field), f"environments[].{field} is immutable; make a new RLJob")
            for above, _, field in (path.partition("[].") for path in ENTRY_FIELDS)
            if above == "environments"
        ),
    ],
    "spec.environments[].tools[]": [
        Rule("has(self.__function__) != has(self.mcp)", "must have exactly one of function and mcp"),
    ],
    "spec.environments[].egress.cidrs[]": [
        Rule(
            "isCIDR(self.cidr) && cidr(self.cidr) == cidr(self.cidr).masked()",
            "cidr must be addresses with the length of their prefix, beginning with the first, e.g. 10.20.0.0/16",
        ),
    ],
}
