from __future__ import annotations

import pytest
from msgspec.structs import replace

from tpuctl.config.proxy import (
    check_jump_host,
    check_proxy_command,
    proxy_words,
    render_proxy,
    render_proxy_option,
)
from tpuctl.errors import BadConfigError, UsageError
from tpuctl.model.cloud import HostTarget

TARGET = HostTarget("big", 3, "203.0.113.7", 2222, "ada", "ssh-ed25519 K")


def test_tokens_become_parts_of_their_words_and_nothing_else():
    words = proxy_words("connect 'to %h' %p%% %r@%n ';rm' $(x)", None)
    assert render_proxy(words, TARGET) == ["connect", "to 203.0.113.7", "2222%", "ada@big-3", ";rm", "$(x)"]


def test_an_instance_and_its_zone_are_named_for_iap_and_only_a_name_of_one_gets_there():
    words = proxy_words(None, None, "my-project")
    there = replace(TARGET, instance="t1v-n-ab12-w-3", zone="us-central2-b")
    assert " ".join(render_proxy(words, there)) == (
        "gcloud compute start-iap-tunnel t1v-n-ab12-w-3 2222 --listen-on-stdin --zone=us-central2-b "
        "--project=my-project"
    )
    assert render_proxy(proxy_words("go %i.%z", None), there) == ["go", "t1v-n-ab12-w-3.us-central2-b"]
    for name in ("", "--impersonate-service-account=x", "a b", "$(reboot)"):
        with pytest.raises(BadConfigError, match="no way to big-3"):
            render_proxy(words, replace(there, instance=name))


def test_a_jump_host_is_reached_by_the_users_ssh():
    argv = render_proxy(proxy_words(None, "ada@gate.example.com:2200"), TARGET)
    assert argv[:3] == ["ssh", "-W", "[203.0.113.7]:2222"]
    assert argv[-4:] == ["-p", "2200", "--", "ada@gate.example.com"]
    assert render_proxy(proxy_words(None, "[2001:db8::1]"), TARGET)[-1] == "2001:db8::1"
    assert proxy_words(None, None) == ()


def test_ssh_gets_the_same_command_quoted_for_its_shell():
    words = proxy_words("run 'a b' %h 100%%", None)
    assert render_proxy_option(words, TARGET) == "run 'a b' 203.0.113.7 100%%"


@pytest.mark.parametrize("text", ["-oProxyCommand=x", "a b", "ada@-x", "host;rm", "host:port", "", "a@b@c"])
def test_what_is_no_jump_host_is_refused(text):
    with pytest.raises(UsageError, match="not a jump host"):
        check_jump_host(text)


@pytest.mark.parametrize("text", ["nc 'open", "", "nc %x", "nc 50%"])
def test_what_is_no_proxy_command_is_refused(text):
    with pytest.raises(UsageError):
        check_proxy_command(text)


def test_an_address_that_is_none_does_not_reach_a_command():
    for address in ("-oProxyCommand=x", "$(reboot)", "a b", ""):
        with pytest.raises(BadConfigError):
            render_proxy(("nc", "%h"), HostTarget("big", 0, address, 22, "ada", ""))


def test_both_ways_at_once_are_refused():
    with pytest.raises(BadConfigError, match="exclude"):
        proxy_words("nc %h %p", "gate")
