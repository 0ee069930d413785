"""The telecom domain by value: the operator's operations, the telephone, and what a scripted user understands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from agent_r1_gym.envs.tau2.database import Database
from agent_r1_gym.envs.tau2.phone_user import follow, remaining_problem
from agent_r1_gym.envs.tau2.tasks import open_world
from agent_r1_gym.envs.tau2.telecom import TelecomOperations
from agent_r1_gym.errors import ToolError

LINE = {"customer_id": "C1", "line_id": "L1"}


@pytest.fixture
def telecom() -> TelecomOperations:
    world = open_world("telecom", "sample")
    operations = world.operations(Database(world.tables))
    assert isinstance(operations, TelecomOperations)
    operations.set_user_info("Ada Brandt", "555-010-2001")
    return operations


def call(operations: TelecomOperations, name: str, **arguments: Any) -> Any:
    result = operations.call(name, arguments)
    return json.loads(result) if result[:1] in "[{" else result


class TestOperator:
    def test_lookups(self, telecom: TelecomOperations) -> None:
        customer = call(telecom, "get_customer_by_phone", phone_number="555-010-2001")
        assert (customer["customer_id"], customer["created_at"]) == ("C1", "2025-01-15 10:30:00")
        assert call(telecom, "get_customer_by_name", full_name="ada brandt", dob="1980-02-03") == [customer]
        assert call(telecom, "get_customer_by_name", full_name="ada brandt", dob="1980-02-04") == []
        assert call(telecom, "get_details_by_id", id="P1")["name"] == "Harbour 10"
        with pytest.raises(ToolError, match="Unknown ID format or type: X1"):
            call(telecom, "get_details_by_id", id="X1")
        with pytest.raises(ToolError, match="Line L2 not found for customer C1"):
            call(telecom, "get_data_usage", customer_id="C1", line_id="L2")

    def test_usage_is_printed_as_text(self, telecom: TelecomOperations) -> None:
        assert call(telecom, "get_data_usage", **LINE) == {
            "line_id": "L1",
            "data_used_gb": "4.5",
            "data_limit_gb": "10.0",
            "data_refueling_gb": "0.0",
            "cycle_end_date": "2025-02-28",
        }

    def test_refueled_data_are_charged_on_the_next_bill(self, telecom: TelecomOperations) -> None:
        telecom.call("set_data_usage", {**LINE, "data_used_gb": 11.0})
        assert telecom.surroundings["mobile_data_usage_exceeded"]
        for _ in range(2):
            call(telecom, "refuel_data", **LINE, gb_amount=2.0)
        assert not telecom.surroundings["mobile_data_usage_exceeded"]
        (bill,) = call(telecom, "get_bills_for_customer", customer_id="C1")
        assert (bill["total_due"], bill["period_start"], bill["period_end"]) == (12.0, "2025-03-01", "2025-03-31")
        assert (bill["status"], bill["due_date"], len(bill["line_items"])) == ("Draft", "2025-03-15", 2)
        with pytest.raises(ToolError, match="must be positive"):
            call(telecom, "refuel_data", **LINE, gb_amount=0)

    def test_a_suspended_line_takes_the_service_and_a_payment_brings_it_back(self, telecom: TelecomOperations) -> None:
        telecom.call("suspend_line_for_overdue_bill", {**LINE, "new_bill_id": "B1", "contract_ended": True})
        telecom.simulate_network_search()
        assert telecom.assert_service_status("no_service")
        assert telecom.assert_overdue_bill_exists("C1", "B1")
        assert call(telecom, "get_details_by_id", id="L1")["contract_end_date"] == "2025-01-31"
        call(telecom, "send_payment_request", customer_id="C1", bill_id="B1")
        with pytest.raises(ToolError, match="already awaiting payment"):
            call(telecom, "send_payment_request", customer_id="C1", bill_id="B1")
        call(telecom, "make_payment")
        assert telecom.assert_no_overdue_bill("B1")
        assert call(telecom, "make_payment") == "You do not have a payment request."
        assert call(telecom, "resume_line", **LINE)["message"] == "Line resumed successfully"
        call(telecom, "reboot_device")
        assert telecom.assert_service_status("connected")
        with pytest.raises(ToolError, match="Line must be suspended to resume"):
            call(telecom, "resume_line", **LINE)


class TestPhone:
    @pytest.mark.parametrize(
        ("fault", "repairs", "works"),
        [
            (("turn_data_off", {}), [("toggle_data", {})], "data"),
            (("turn_airplane_mode_on", {}), [("toggle_airplane_mode", {})], "service"),
            (("unseat_sim_card", {}), [("reseat_sim_card", {})], "service"),
            (("break_apn_settings", {}), [("reset_apn_settings", {}), ("reboot_device", {})], "service"),
            (("break_apn_mms_setting", {}), [("reset_apn_settings", {}), ("reboot_device", {})], "mms"),
            (("break_vpn", {}), [("disconnect_vpn", {})], "data"),
            (("turn_data_saver_mode_on", {}), [("toggle_data_saver_mode", {})], "data"),
            (
                ("set_network_mode_preference", {"mode": "2g_only"}),
                [("set_network_mode_preference", {"mode": "4g_5g_preferred"})],
                "mms",
            ),
            (("set_wifi_calling", {"enabled": True, "mms_over_wifi": True}), [("toggle_wifi_calling", {})], "mms"),
            (
                ("remove_app_permission", {"app_name": "messaging", "permission": "sms"}),
                [("grant_app_permission", {"app_name": "messaging", "permission": "SMS"})],
                "mms",
            ),
            (("set_user_location", {"abroad": True}), [("toggle_roaming", {})], "data"),
        ],
    )
    def test_each_fault_breaks_something_and_has_a_repair(
        self, telecom: TelecomOperations, fault: tuple[str, Any], repairs: list[tuple[str, Any]], works: str
    ) -> None:
        def check() -> bool:
            return {
                "data": telecom.assert_internet_speed(200, "excellent"),
                "service": telecom.assert_service_status("connected"),
                "mms": telecom.assert_can_send_mms(True),
            }[works]

        telecom.simulate_network_search()
        assert check()
        telecom.call(*fault)
        assert not check()
        for repair in repairs:
            telecom.call(*repair)
        assert check()

    def test_what_the_user_sees(self, telecom: TelecomOperations) -> None:
        assert call(telecom, "check_status_bar") == "Status Bar: 📶³ Good | 5G | 📱 Data Enabled | 🔋 80%"
        assert call(telecom, "run_speed_test") == "Speed Test Result: 220.00 Mbps (Excellent). Connection is very fast."
        telecom.call("lock_sim_card", {"mode": "pin"})
        assert call(telecom, "check_sim_status") == "The SIM card is locked with a PIN code."
        assert call(telecom, "run_speed_test") == "Speed test failed: No Connection."
        assert call(telecom, "check_app_permissions", app_name="messaging").endswith("for: sms, storage, phone.")
        assert call(telecom, "check_app_permissions", app_name="chess") == "App 'chess' not found on this phone."
        telecom.call("connect_vpn", {})
        assert "<PerformanceLevel.EXCELLENT: 'excellent'>" in call(telecom, "check_vpn_status")
        assert "not a valid option" in call(telecom, "set_network_mode_preference", mode="6g")

    def test_a_broken_vpn_is_slow_also_after_it_was_connected_anew(self, telecom: TelecomOperations) -> None:
        """As in tau2-bench, but for this episode alone."""
        telecom.simulate_network_search()
        for breaks, is_excellent in ((False, True), (True, False)):
            if breaks:
                telecom.call("break_vpn", {})
            telecom.call("disconnect_vpn", {})
            telecom.call("connect_vpn", {})
            assert telecom.assert_internet_speed(200, "excellent") == is_excellent

    def test_speed_classes(self, telecom: TelecomOperations) -> None:
        telecom.simulate_network_search()
        speeds = {}
        for mode in ("2g_only", "3g_only", "4g_only", "4g_5g_preferred"):
            telecom.call("set_network_mode_preference", {"mode": mode})
            speeds[mode] = telecom._speed()
        assert speeds == {
            "2g_only": (0.05, "Very Poor"),
            "3g_only": (1.5, "Poor"),
            "4g_only": (44.0, "Good"),
            "4g_5g_preferred": (275.0, "Excellent"),
        }


class TestScriptedUser:
    @pytest.mark.parametrize(
        ("message", "names"),
        [
            ("What does your status bar show?", ["check_status_bar"]),
            ("Please run a speed test.", ["run_speed_test"]),
            ("Please turn on data roaming.", ["check_network_status", "toggle_roaming"]),
            ("Turn off Airplane mode, please.", ["check_network_status"]),
            ("Is the data saver on?", ["check_data_restriction_status"]),
            ("Please disconnect your VPN.", ["check_vpn_status"]),
            ("Reset the APN settings. Then restart your phone.", ["reset_apn_settings", "reboot_device"]),
            ("Remove and re-insert the SIM card.", ["reseat_sim_card"]),
            ("Set the network mode to 4G/5G preferred.", ["set_network_mode_preference"]),
            ("Which network mode is selected?", ["check_network_mode_preference"]),
            ("Allow sms and storage permissions for messaging.", ["grant_app_permission"] * 2),
            ("Please turn Wi-Fi calling on.", ["check_wifi_calling_status", "toggle_wifi_calling"]),
            ("Can you send an MMS now?", ["can_send_mms"]),
            ('Please do this: grant_app_permission {"app_name": "messaging", "permission": "sms"}',
             ["grant_app_permission"]),
            ("I have enabled roaming on your line.", []),
            ("Thank you for your patience.", []),
            ("Your mobile data plan allows 10 GB.", []),
            ("Don't turn off mobile data.", []),
            ("Please do not turn off mobile data.", []),
            ("Do not restart your phone yet.", []),
            ("There is no need to restart, and never turn on roaming.", []),
            ("You should not reset the APN settings, but restart the device.", ["reboot_device"]),
            ("Please don't forget to restart your phone.", ["reboot_device"]),
            ("Did you enable Airplane Mode recently?", ["check_network_status"]),
            ("Have you tried turning roaming on?", ["check_network_status"]),
            ("Have you paid the bill?", []),
            ("I'll disable roaming on your line now, okay?", []),
            ("I can turn on roaming for you on our side, shall I?", []),
            ("I have turned on roaming for you, please restart your phone.", ["reboot_device"]),
            ("Data roaming will let you connect abroad.", []),
            ("Turning on roaming costs money.", []),
            ("Please do a speed test.", ["run_speed_test"]),
            ("Can you check your internet speed?", ["run_speed_test"]),
            ("Take the SIM out and put it back in.", ["reseat_sim_card"]),
            ("Remove the SIM card, then put the SIM back in.", ["reseat_sim_card"]),
            ("Power cycle the handset.", ["reboot_device"]),
            ("Could you turn your phone off and on again?", ["reboot_device"]),
            ("Make sure roaming is on, then run a speed test.",
             ["check_network_status", "toggle_roaming", "run_speed_test"]),
            ("1. Turn on data roaming\n2. Reboot the phone\n3. Run a speed test",
             ["check_network_status", "toggle_roaming", "reboot_device", "run_speed_test"]),
            ("Would you mind turning on data roaming?", ["check_network_status", "toggle_roaming"]),
            ("I'd like you to turn on data roaming.", ["check_network_status", "toggle_roaming"]),
            ("I'd like you to enable data roaming, please.", ["check_network_status", "toggle_roaming"]),
            ("I've enabled roaming on your line, now enable roaming on your phone.",
             ["check_network_status", "toggle_roaming"]),
            ("Do not touch other settings, just reboot.", ["reboot_device"]),
            ("Set network mode: 4G/5G.", ["set_network_mode_preference"]),
            ("First the SIM: take the SIM out.", ["reseat_sim_card"]),
            ("I will now reset your APN settings remotely.", []),
            ("I see an overdue bill. Can I send you a payment request?", []),
            ("Would you like me to enable roaming?", []),
            ("We need to reseat the SIM card.", ["reseat_sim_card"]),
            ("If roaming is off, turn it on.", ["check_network_status", "toggle_roaming"]),
            ("Please turn airplane mode on and off again.",
             ["check_network_status", "toggle_airplane_mode", "toggle_airplane_mode"]),
            ("Please make sure that airplane mode is not on.", ["check_network_status"]),
            ("Would you be willing to settle it now?", ["make_payment"]),
            ("I have sent you a payment request. Could you accept the payment request?", ["make_payment"]),
            ("I'd like you to reset the APN settings to default, and afterwards to restart your phone.",
             ["reset_apn_settings", "reboot_device"]),
            ("Restart the phone and reset the APN.", ["reboot_device", "reset_apn_settings"]),
            ("Please restart your phone after resetting the APN settings.", ["reset_apn_settings", "reboot_device"]),
            ("Restart your phone once you've reset the APN settings.", ["reset_apn_settings", "reboot_device"]),
            ("Do not restart your phone after resetting the APN settings.", []),
            ("Turn off airplane mode, and afterwards restart your phone.", ["check_network_status", "reboot_device"]),
            ("Please do not turn off or restart the phone.", []),
            ("- **Change:** data roaming enabled, at no cost", []),
            ("The details are: line - L1001; change - data roaming enabled, at no cost. OK?", []),
            ("Enable roaming on your line. Change: data roaming enabled, at no cost. OK?", []),
            ("Send you a payment request for the overdue bill B1234321. OK?", []),
            ("Go to Preferred Network Type and choose the 4G/5G option.", ["set_network_mode_preference"]),
            ("Please set your phone to use 5G.", ["set_network_mode_preference"]),
            ("Your plan includes 5G.", []),
            ("Choose 4G rather than 2G.", ["set_network_mode_preference"]),
            ("Make sure that the network type is not 2G.", []),
            ("Instead of restarting the phone, reset the APN.", ["reset_apn_settings"]),
            ("Restart your phone once you've turned off airplane mode.", ["check_network_status", "reboot_device"]),
            ("Is storage allowed for your messaging app?", ["check_app_permissions"]),
            ("Please allow your messaging app to access storage.", ["grant_app_permission"]),
            ("In Settings > Apps > Messages > Permissions, enable Storage.", ["grant_app_permission"]),
            ("Please make sure that Storage is allowed.", ["grant_app_permission"]),
            ("Can you send an SMS?", []),
            ("On your phone, grant the messaging app the SMS permission.", ["grant_app_permission"]),
            ("Your phone must be restarted.", ["reboot_device"]),
            ("Your SIM must not be removed.", []),
            ("What do you see at the top of the screen?", ["check_status_bar"]),
            ("Could you disable calling over Wi-Fi?", ["check_wifi_calling_status"]),
            ("Restore the default access point names.", ["reset_apn_settings"]),
        ],
    )  # fmt: skip
    def test_requests(self, telecom: TelecomOperations, message: str, names: list[str]) -> None:
        made: list[str] = []

        def act(name: str, arguments: Mapping[str, Any]) -> str:
            made.append(name)
            return telecom.call(name, arguments)

        results = follow(message, telecom.user_tools, act)
        assert made == names
        assert bool(results) == bool(names)

    def test_each_clause_has_its_own_direction(self, telecom: TelecomOperations) -> None:
        telecom.call("toggle_wifi", {})
        telecom.call("toggle_data", {})
        results = follow("Turn off Wi-Fi and turn on mobile data.", telecom.user_tools, telecom.call)
        assert [result.split("\n")[0] for result in results] == ["Wi-Fi is now OFF.", "Mobile Data is now ON."]

    def test_without_a_telephone_nothing_is_done(self) -> None:
        assert follow("Please restart your phone.", (), lambda name, arguments: name) == []
        assert remaining_problem("no speed", (), lambda name, arguments: name) is None
