"""The telephone of tau2-bench's telecom user: a small simulation of settings, signal and what works.

The agent cannot touch it. The user reads and changes it with the operations in `PhoneOperations.user_tools`; tasks
break it before an episode, and assert afterwards that it works. Names, results and rules are tau2-bench's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from agent_r1_gym.envs.tau2.database import Row
from agent_r1_gym.envs.tau2.file_schema import (
    Record,
    Shape,
    choice,
    defaulting,
    flag,
    integer,
    maybe,
    number,
    read_defaults,
    table,
    text,
)
from agent_r1_gym.envs.tau2.operations import Operations

_SIGNALS = ("none", "poor", "fair", "good", "excellent")
_NETWORKS = ("none", "2G", "3G", "4G", "5G")
_MODES = ("4g_5g_preferred", "4g_only", "3g_only", "2g_only")
_NETWORK_OF_MODE = {"4g_only": "4G", "3g_only": "3G", "2g_only": "2G"}
_MBPS = {"2G": (0.1, 0.4), "3G": (1.0, 5.0), "4G": (10.0, 100.0), "5G": (50.0, 500.0)}
_SIGNAL_FACTORS = {"poor": 0.2, "fair": 0.5, "good": 0.8, "excellent": 1.0}
_SPEEDS = ((1, "Very Poor"), (5, "Poor"), (25, "Fair"), (100, "Good"))
_ADVICE = {
    "Very Poor": "Connection is very slow. Basic web browsing might be difficult.",
    "Poor": "Connection is slow. Web browsing may be sluggish, streaming difficult.",
    "Fair": "Connection is okay for web browsing and some standard definition streaming.",
    "Good": "Connection is good for most activities, including HD streaming.",
    "Excellent": "Connection is very fast.",
}
_SIGNAL_ICONS = {
    **{"none": "📵 No Signal", "poor": "📶¹ Poor", "fair": "📶² Fair"},
    **{"good": "📶³ Good", "excellent": "📶⁴ Excellent"},
}
_SIM = {
    "active": "Your SIM card is active and working.",
    "missing": "No SIM card detected in the phone.",
    "locked_pin": "The SIM card is locked with a PIN code.",
    "locked_puk": "The SIM card is locked with a PUK code.",
}

_APN = Record(
    {
        "apn_name": defaulting(choice("internet", "broken"), "internet"),
        "reset_at_reboot": defaulting(flag, False),
        "mms_apn": defaulting(maybe(text), "mms"),
        "mmsc_url": defaulting(maybe(text), "http://mms.carrier.com/mms/wapenc"),
        "mms_proxy": defaulting(maybe(text), None),
        "mms_port": defaulting(maybe(integer), None),
    }
)
_APN_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "apn_name": {
            "type": "string",
            "enum": ["internet", "broken"],
            "default": "internet",
            "description": "The name of the access point.",
        },
        "reset_at_reboot": {
            "type": "boolean",
            "default": False,
            "description": "Whether the settings are reset at the next reboot.",
        },
        "mms_apn": {
            "type": ["string", "null"],
            "default": "mms",
            "description": "The name of the access point for MMS, if it is another one.",
        },
        "mmsc_url": {
            "type": ["string", "null"],
            "default": "http://mms.carrier.com/mms/wapenc",
            "description": "The URL of the centre for MMS (MMSC), which MMS needs.",
        },
        "mms_proxy": {
            "type": ["string", "null"],
            "default": None,
            "description": "The address of the proxy that MMS needs on some networks.",
        },
        "mms_port": {
            "type": ["integer", "null"],
            "default": None,
            "description": "The port of the proxy that MMS needs on some networks.",
        },
    },
}
_PERMISSIONS = Record({name: defaulting(flag, False) for name in ("sms", "storage", "phone", "network")})
_APP = Record({"app_name": text, "permissions": defaulting(_PERMISSIONS, read_defaults(_PERMISSIONS))})
_VPN = Record(
    {
        "server_address": defaulting(maybe(text), None),
        "protocol": defaulting(maybe(text), None),
        "server_performance": defaulting(choice("unknown", *_SIGNALS[1:]), "unknown"),
    }
)
_APPS: Mapping[str, Any] = {
    "messaging": {
        "app_name": "messaging",
        "permissions": {"sms": True, "storage": True, "phone": True, "network": False},
    },
    "browser": {
        "app_name": "browser",
        "permissions": {"sms": False, "storage": True, "phone": False, "network": True},
    },
}
_DEVICE = Record(
    {
        "sim_card_status": defaulting(choice("active", "missing", "locked_pin", "locked_puk"), "active"),
        "sim_card_missing": defaulting(flag, False),
        "airplane_mode": defaulting(flag, False),
        "network_signal_strength": defaulting(choice(*_SIGNALS), "good"),
        "network_technology_connected": defaulting(choice(*_NETWORKS), "5G"),
        "network_connection_status": defaulting(
            choice("connected", "searching", "no_service", "emergency_only"), "connected"
        ),
        "battery_level": defaulting(integer, 80),
        "data_enabled": defaulting(flag, True),
        "roaming_enabled": defaulting(flag, False),
        "network_mode_preference": defaulting(choice(*_MODES), "4g_5g_preferred"),
        "active_apn_settings": defaulting(_APN, read_defaults(_APN)),
        "wifi_enabled": defaulting(flag, False),
        "wifi_connected": defaulting(flag, False),
        "wifi_ssid": defaulting(maybe(text), None),
        "wifi_signal_strength": defaulting(choice(*_SIGNALS), "none"),
        "wifi_calling_enabled": defaulting(flag, False),
        "wifi_calling_mms_over_wifi": defaulting(flag, False),
        "data_saver_mode": defaulting(flag, False),
        "vpn_enabled_setting": defaulting(flag, False),
        "vpn_connected": defaulting(flag, False),
        "vpn_details": defaulting(maybe(_VPN), None),
        # tau2-bench's `break_vpn` slows down the VPN that it connects to, so that each later connection is slow too.
        "vpn_broken": defaulting(flag, False),
        "app_statuses": defaulting(table(_APP), _APPS),
    }
)
_REQUEST = Record({"bill_id": text, "amount_due": number, "paid": defaulting(flag, False)})
_SURROUNDINGS = Record(
    {
        "name": defaulting(maybe(text), None),
        "phone_number": defaulting(maybe(text), None),
        "is_abroad": defaulting(flag, False),
        "roaming_allowed": defaulting(flag, False),
        "signal_strength": defaulting(
            table(choice(*_SIGNALS)), {"2G": "poor", "3G": "fair", "4G": "good", "5G": "excellent"}
        ),
        "mobile_data_usage_exceeded": defaulting(flag, False),
        "line_active": defaulting(flag, True),
        "payment_request": defaulting(maybe(_REQUEST), None),
    }
)
_ROW = "phone"
"""Key of the only row of the user's tables."""


class PhoneOperations(Operations):
    """The user's side of the telecom domain."""

    user_tables: ClassVar[Mapping[str, Shape]] = {"device": table(_DEVICE), "surroundings": table(_SURROUNDINGS)}
    user_tools: ClassVar[tuple[str, ...]] = (
        *("check_status_bar", "check_network_status", "check_network_mode_preference", "set_network_mode_preference"),
        *("run_speed_test", "toggle_airplane_mode", "check_sim_status", "reseat_sim_card", "toggle_data"),
        *("toggle_roaming", "check_data_restriction_status", "toggle_data_saver_mode", "check_apn_settings"),
        *("set_apn_settings", "reset_apn_settings", "check_wifi_status", "toggle_wifi", "check_wifi_calling_status"),
        *("toggle_wifi_calling", "check_vpn_status", "connect_vpn", "disconnect_vpn", "check_installed_apps"),
        *("check_app_status", "check_app_permissions", "grant_app_permission", "can_send_mms", "reboot_device"),
        *("check_payment_request", "make_payment"),
    )

    schemas: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "mode": {"type": "string", "enum": list(_MODES)},
        "apn_settings": _APN_SCHEMA,
    }

    @classmethod
    def arrange_phone(cls, files: Mapping[str, Any]) -> dict[str, Any]:
        """The user's tables from the file of the user's database: one row each."""
        data = files.get("user_db") or {}
        return {name: {_ROW: data.get(name) or {}} for name in cls.user_tables}

    @property
    def device(self) -> Row:
        """The telephone, to read and change."""
        return self.database.edit("device", _ROW)

    @property
    def surroundings(self) -> Row:
        """Where the user is, and what the operator allows, to read and change."""
        return self.database.edit("surroundings", _ROW)

    # --- what the user sees ------------------------------------------------------------------------------------------

    def check_status_bar(self) -> str:
        """Show the icons in your phone's status bar, at the top of the screen.

        They are the network signal, whether mobile data is enabled, disabled or saved, Wi-Fi, VPN and the battery.
        """
        return f"Status Bar: {self._status_bar()}"

    def _status_bar(self) -> str:
        device, icons = self.device, []
        if device["airplane_mode"]:
            icons.append("✈️ Airplane Mode")
        else:
            network = device["network_technology_connected"]
            icons.append(_SIGNAL_ICONS[device["network_signal_strength"]])
            if network != "none":
                icons.append(network)
            if device["data_enabled"] and network != "none":
                icons.append("📱 Data Enabled")
                icons += ["🔽 Data Saver"] if device["data_saver_mode"] else []
            else:
                icons.append("📵 Data Disabled")
        if device["wifi_enabled"] and device["wifi_connected"]:
            icons.append(f"📡 Connected to {device['wifi_ssid']}" if device["wifi_ssid"] else "📡 Enabled")
        if device["vpn_connected"]:
            icons.append("🔒 VPN Connected")
        return " | ".join([*icons, f"🔋 {device['battery_level']}%"])

    def _done(self, message: str) -> str:
        return f"{message}\nStatus Bar: {self._status_bar()}"

    def check_network_status(self) -> str:
        """Check your phone's connection to cellular networks and Wi-Fi.

        Shows airplane mode, the SIM card, signal strength and type of the network, and whether mobile data
        and data roaming are enabled.
        """
        device = self.device
        lines = [
            f"Airplane Mode: {_on(device['airplane_mode'])}",
            f"SIM Card Status: {self._sim()}",
            f"Cellular Connection: {device['network_connection_status']}",
            f"Cellular Signal: {device['network_signal_strength']}",
            f"Cellular Network Type: {device['network_technology_connected']}",
            f"Mobile Data Enabled: {_yes(device['data_enabled'])}",
            f"Data Roaming Enabled: {_yes(device['roaming_enabled'])}",
            f"Wi-Fi Radio: {_on(device['wifi_enabled'])}",
            f"Wi-Fi Connected: {_yes(device['wifi_connected'])}",
        ]
        if device["wifi_connected"]:
            lines.append(f"Connected Wi-Fi Network: {device['wifi_ssid']}")
        return "\n".join(lines)

    def check_network_mode_preference(self) -> str:
        """Show which type of cellular network your phone prefers."""
        return f"Network Mode Preference: {self.device['network_mode_preference']}"

    def run_speed_test(self) -> str:
        """Measure how fast your internet connection downloads, and show what that is good enough for."""
        speed, description = self._speed()
        if speed is None:
            return f"Speed test failed: {description}."
        return f"Speed Test Result: {speed:.2f} Mbps ({description}). {_ADVICE[description]}"

    def _speed(self) -> tuple[float | None, str]:
        """Mbps and a word for it; None without a connection."""
        device = self.device
        if not self._has_mobile_data():
            return None, "No Connection"
        vpn = device["vpn_details"]
        factor = 0.1 if device["vpn_connected"] and vpn and vpn["server_performance"] == "poor" else 1.0
        factor *= 0.2 if device["data_saver_mode"] else 1.0
        low, high = _MBPS.get(device["network_technology_connected"], (0.0, 0.0))
        signal = _SIGNAL_FACTORS.get(device["network_signal_strength"], 0.0)
        speed = round((low + high) / 2.0 * signal * factor, 2)
        return speed, next((word for limit, word in _SPEEDS if speed < limit), "Excellent")

    def _has_mobile_data(self) -> bool:
        device, around = self.device, self.surroundings
        return not (
            device["airplane_mode"]
            or device["network_signal_strength"] == "none"
            or device["network_connection_status"] == "no_service"
            or (around["is_abroad"] and not (device["roaming_enabled"] and around["roaming_allowed"]))
            or not device["data_enabled"]
            or around["mobile_data_usage_exceeded"]
        )

    def check_sim_status(self) -> str:
        """Check whether your SIM card works: whether it is active, missing, or locked with a PIN or PUK code."""
        return _SIM[self._sim()]

    def _sim(self) -> str:
        return "missing" if self.device["sim_card_missing"] else str(self.device["sim_card_status"])

    def check_data_restriction_status(self) -> str:
        """Check whether your phone limits the use of data: whether Data Saver mode is on."""
        is_on = self.device["data_saver_mode"]
        return "Data Saver mode is ON (limits data usage)." if is_on else "Data Saver mode is OFF."

    def check_apn_settings(self) -> str:
        """Check the technical settings (APN) with which your phone connects to the carrier's mobile data network.

        Shows the name of the access point, and the MMSC URL for picture messages.
        """
        settings = self.device["active_apn_settings"]
        return (
            f"Current APN Name: {settings['apn_name']}\n"
            f"MMSC URL (for picture messages): {settings['mmsc_url'] or 'Not Set'}\n"
            "(These are technical settings, usually best left unchanged.)"
        )

    def check_wifi_status(self) -> str:
        """Check whether Wi-Fi is on, which network it is connected to, and how strong the signal is."""
        device = self.device
        if not device["wifi_enabled"]:
            return "Wi-Fi is turned OFF."
        if not device["wifi_connected"]:
            return "Wi-Fi is ON but not connected to any network."
        signal = device["wifi_signal_strength"]
        return f"Wi-Fi is ON and connected to '{device['wifi_ssid']}'. Signal strength: {signal}."

    def check_wifi_calling_status(self) -> str:
        """Check whether Wi-Fi Calling is on: calls over a Wi-Fi network instead of the cellular one."""
        return f"Wi-Fi Calling is currently turned {_on(self.device['wifi_calling_enabled'])}."

    def check_vpn_status(self) -> str:
        """Check whether you are using a VPN (Virtual Private Network), and show the details of its connection."""
        device = self.device
        details = device["vpn_details"]
        if device["vpn_connected"] and details:
            performance = details["server_performance"]
            return (
                f"VPN is ON and connected. Details: {{'server_address': {details['server_address']!r}, "
                f"'protocol': {details['protocol']!r}, "
                f"'server_performance': <PerformanceLevel.{performance.upper()}: {performance!r}>}}"
            )
        if device["vpn_connected"]:
            return "VPN is ON and connected (no specific details available)."
        is_set = device["vpn_enabled_setting"]
        return "VPN is turned ON in settings, but currently not connected." if is_set else "VPN is turned OFF."

    def check_installed_apps(self) -> str:
        """Show the names of all apps that are installed on your phone."""
        return f"The following apps are installed on the phone: {', '.join(self.device['app_statuses'])}"

    def check_app_status(self, app_name: str) -> str:
        """Check an app in detail, such as its permissions.

        Args:
            app_name: The name of the app, such as "messaging".
        """
        granted = self._granted(app_name)
        if granted is None:
            return f"App '{app_name}' not found on this phone."
        if not granted:
            return f"Status for App: {app_name}\n - Permissions: None granted."
        return "\n".join([f"Status for App: {app_name}", " - Permissions Granted:", *(f"   - {it}" for it in granted)])

    def check_app_permissions(self, app_name: str) -> str:
        """Check which permissions an app has, such as access to storage.

        Args:
            app_name: The name of the app, such as "messaging".
        """
        granted = self._granted(app_name)
        if granted is None:
            return f"App '{app_name}' not found on this phone."
        if not granted:
            return f"App '{app_name}' currently has no permissions granted."
        return f"App '{app_name}' has permission for: {', '.join(granted)}."

    def _granted(self, app_name: str) -> list[str] | None:
        app = self.device["app_statuses"].get(app_name)
        return None if app is None else [name for name, allowed in app["permissions"].items() if allowed]

    def can_send_mms(self) -> str:
        """Check whether your default messaging app can send MMS (picture) messages."""
        return f"Your messaging app {'can' if self._can_send_mms() else 'cannot'} send MMS messages."

    def _can_send_mms(self) -> bool:
        device = self.device
        app = device["app_statuses"].get("messaging")
        return bool(
            self._has_mobile_data()
            and device["network_technology_connected"] != "2G"
            and not (device["wifi_calling_enabled"] and device["wifi_calling_mms_over_wifi"])
            and device["active_apn_settings"]["mmsc_url"] is not None
            and app is not None
            and app["permissions"]["storage"]
            and app["permissions"]["sms"]
        )

    def check_payment_request(self) -> str:
        """Check whether the agent has sent you a payment request, and for which bill."""
        request = self.surroundings["payment_request"]
        if request is None:
            return "No payment request has been made."
        return f"You have a payment request for bill {request['bill_id']} of {request['amount_due']} USD."

    # --- what the user does ------------------------------------------------------------------------------------------

    def set_network_mode_preference(self, mode: str) -> str:
        """Change which type of cellular network (5G, 4G, 3G, 2G) your phone prefers.

        Newer networks (4G, 5G) are faster, but may use more battery.

        Args:
            mode: The preferred networks.
        """
        if mode not in _MODES:
            options = ", ".join(_MODES)
            return self._done(
                f"Failed to set network mode: '{mode}' is not a valid option. Please use one of: {options}"
            )
        self.device["network_mode_preference"] = mode
        self.simulate_network_search()
        return self._done(f"Preferred Network Mode set to: {mode}")

    def toggle_airplane_mode(self) -> str:
        """Turn Airplane Mode ON if it is off, and OFF if it is on.

        When ON, it disconnects all wireless connections: cellular, Wi-Fi and Bluetooth. Returns the new state.
        """
        device = self.device
        device["airplane_mode"] = not device["airplane_mode"]
        if device["airplane_mode"] or device["wifi_enabled"]:
            device |= {"wifi_connected": False, "wifi_ssid": None, "wifi_signal_strength": "none"}
        if device["airplane_mode"] and device["vpn_connected"]:
            device |= {"vpn_connected": False, "vpn_details": None}
        self.simulate_network_search()
        return self._done(f"Airplane Mode is now {_on(device['airplane_mode'])}.")

    def reseat_sim_card(self) -> str:
        """Remove your SIM card and insert it again, which may help if the phone does not recognise it."""
        self.device["sim_card_missing"] = False
        self.simulate_network_search()
        return self._done("SIM card re-seated successfully.")

    def toggle_data(self) -> str:
        """Turn mobile data ON if it is off, and OFF if it is on.

        It lets your phone use the internet where there is no Wi-Fi. Returns the new state.
        """
        return self._done(f"Mobile Data is now {_on(self._toggle('data_enabled'))}.")

    def toggle_roaming(self) -> str:
        """Turn Data Roaming ON if it is off, and OFF if it is on.

        When ON, your phone can use data networks outside the coverage of your carrier. Returns the new state.
        """
        return self._done(f"Data Roaming is now {_on(self._toggle('roaming_enabled'))}.")

    def _toggle(self, setting: str) -> bool:
        """Flip a setting of the mobile connection, and search for a network."""
        self.device[setting] = not self.device[setting]
        self.simulate_network_search()
        return bool(self.device[setting])

    def toggle_data_saver_mode(self) -> str:
        """Turn Data Saver mode ON if it is off, and OFF if it is on.

        When ON, the phone uses less data, which may make its connection slower. Returns the new state.
        """
        self.device["data_saver_mode"] = not self.device["data_saver_mode"]
        return self._done(f"Data Saver Mode is now {_on(self.device['data_saver_mode'])}.")

    def set_apn_settings(self, apn_settings: dict) -> str:  # type: ignore[type-arg]
        """Set the technical settings (APN) with which your phone connects to the carrier's mobile data network.

        Args:
            apn_settings: All settings; those that are left out get their default.
        """
        settings = _APN(apn_settings, "apn_settings")
        self.device["active_apn_settings"] = settings
        self.simulate_network_search()
        return self._done(f"APN settings set to: {settings['apn_name']}")

    def reset_apn_settings(self) -> str:
        """Reset your APN settings to their defaults; this takes effect at the next reboot."""
        self.device["active_apn_settings"]["reset_at_reboot"] = True
        self.simulate_network_search()
        return self._done("APN settings will reset at reboot.")

    def toggle_wifi(self) -> str:
        """Turn the Wi-Fi radio ON if it is off, and OFF if it is on.

        It lets your phone find and join wireless networks for internet access. Returns the new state.
        """
        device = self.device
        if device["airplane_mode"]:
            return self._done("Cannot change Wi-Fi settings while Airplane Mode is ON.")
        device["wifi_enabled"] = not device["wifi_enabled"]
        if not device["wifi_enabled"]:
            device |= {"wifi_connected": False, "wifi_ssid": None, "wifi_signal_strength": "none"}
        return self._done(f"Wi-Fi is now {_on(device['wifi_enabled'])}.")

    def toggle_wifi_calling(self) -> str:
        """Turn Wi-Fi Calling ON if it is off, and OFF if it is on.

        It lets you call over Wi-Fi instead of the cellular network, which may help where the signal is weak. Returns
        the new state.
        """
        self.device["wifi_calling_enabled"] = not self.device["wifi_calling_enabled"]
        return self._done(f"Wi-Fi Calling is now {_on(self.device['wifi_calling_enabled'])}.")

    def connect_vpn(self) -> str:
        """Connect to your VPN (Virtual Private Network)."""
        if self.device["vpn_connected"]:
            return "VPN already connected."
        performance = "poor" if self.device["vpn_broken"] else "excellent"
        details = {"server_address": "192.168.1.1", "protocol": "OpenVPN", "server_performance": performance}
        self.device.update(vpn_connected=True, vpn_details=details)
        return self._done("VPN connected successfully.")

    def disconnect_vpn(self) -> str:
        """Disconnect from your VPN (Virtual Private Network).

        Your internet traffic then no longer goes through its server, which may change speed and access.
        """
        if not self.device["vpn_connected"]:
            return self._done("No active VPN connection to disconnect.")
        self.device.update(vpn_connected=False, vpn_details=None)
        return self._done("VPN disconnected successfully.")

    def grant_app_permission(self, app_name: str, permission: str) -> str:
        """Give a permission to an app, such as access to storage; some functions of an app need it.

        Args:
            app_name: The name of the app to grant the permission to.
            permission: The permission to grant, in lower case.
        """
        app, permission = self.device["app_statuses"].get(app_name), permission.lower()
        if app is None:
            return self._done(f"Error. App '{app_name}' not found. Cannot grant permission.")
        if permission not in app["permissions"]:
            return self._done(
                f"Error. Permission '{permission}' not tracked for app '{app_name}', available permissions: "
                f"{list(app['permissions'])}"
            )
        app["permissions"][permission] = True
        return self._done(f"Success. Permission '{permission}' granted to app '{app_name}'.")

    def reboot_device(self) -> str:
        """Restart your phone, which refreshes all services and connections, and so may solve temporary problems."""
        lines = []
        if self.device["active_apn_settings"]["reset_at_reboot"]:
            lines.append("Resetting APN settings...")
            self.device["active_apn_settings"] = read_defaults(_APN)
        self.simulate_network_search()
        return self._done("\n".join([*lines, "Restarting network services..."]))

    def make_payment(self) -> str:
        """Pay the bill for which the agent has sent you a payment request."""
        request = self.surroundings["payment_request"]
        if request is None:
            return "You do not have a payment request."
        request["paid"] = True
        return f"Payment of {request['amount_due']} USD has been made for bill {request['bill_id']}."

    def simulate_network_search(self) -> None:
        """Find the network that SIM card, settings and line allow, and its signal."""
        device, around = self.device, self.surroundings
        signals = around["signal_strength"]
        mode = device["network_mode_preference"]
        network = _NETWORK_OF_MODE.get(mode) or ("4G" if signals.get("5G", "none") == "none" else "5G")
        has_service = (
            self._sim() == "active"
            and not device["airplane_mode"]
            and device["active_apn_settings"]["apn_name"] != "broken"
            and around["line_active"]
        )
        device["network_connection_status"] = "connected" if has_service else "no_service"
        device["network_technology_connected"] = network if has_service else "none"
        device["network_signal_strength"] = signals.get(network, "none") if has_service else "none"

    # --- how tasks set up and break a phone --------------------------------------------------------------------------

    def set_user_info(self, name: str, phone_number: str) -> None:
        """Say who the user is."""
        self.surroundings.update(name=name, phone_number=phone_number)

    def set_user_location(self, abroad: bool) -> None:
        """Say where the user is."""
        self.surroundings["is_abroad"] = abroad

    def turn_airplane_mode_on(self) -> None:
        """Turn airplane mode on."""
        self._toggle_until("airplane_mode", True, self.toggle_airplane_mode)

    def turn_airplane_mode_off(self) -> None:
        """Turn airplane mode off."""
        self._toggle_until("airplane_mode", False, self.toggle_airplane_mode)

    def turn_data_on(self) -> None:
        """Turn mobile data on, without a search."""
        self.device["data_enabled"] = True

    def turn_data_off(self) -> None:
        """Turn mobile data off."""
        self._toggle_until("data_enabled", False, self.toggle_data)

    def turn_roaming_on(self) -> None:
        """Turn data roaming on."""
        self._toggle_until("roaming_enabled", True, self.toggle_roaming)

    def turn_roaming_off(self) -> None:
        """Turn data roaming off."""
        self._toggle_until("roaming_enabled", False, self.toggle_roaming)

    def turn_data_saver_mode_on(self) -> None:
        """Turn data saver mode on."""
        self._toggle_until("data_saver_mode", True, self.toggle_data_saver_mode)

    def turn_data_saver_mode_off(self) -> None:
        """Turn data saver mode off."""
        self._toggle_until("data_saver_mode", False, self.toggle_data_saver_mode)

    def _toggle_until(self, setting: str, value: bool, toggle: Any) -> None:
        """Toggle at least once, as tau2-bench does."""
        toggle()
        if self.device[setting] != value:
            toggle()

    def unseat_sim_card(self) -> None:
        """Take the SIM card out."""
        self.device["sim_card_missing"] = True
        self.simulate_network_search()

    def lock_sim_card(self, mode: str) -> None:
        """Lock the SIM card; nothing that a user can do unlocks it."""
        self.device["sim_card_status"] = {"pin": "locked_pin", "puk": "locked_puk"}[mode]
        self.simulate_network_search()

    def break_apn_settings(self) -> None:
        """Break the access point."""
        self.device["active_apn_settings"]["apn_name"] = "broken"
        self.simulate_network_search()

    def break_apn_mms_setting(self) -> None:
        """Break the access point's address for picture messages."""
        self.device["active_apn_settings"]["mmsc_url"] = None

    def set_wifi_calling(self, enabled: bool, mms_over_wifi: bool | None = None) -> None:
        """Set Wi-Fi calling."""
        self.device["wifi_calling_enabled"] = enabled
        if mms_over_wifi is not None:
            self.device["wifi_calling_mms_over_wifi"] = mms_over_wifi

    def break_vpn(self) -> None:
        """Connect to a VPN that is slow, and stays slow."""
        self.device["vpn_broken"] = True
        self.connect_vpn()
        self.device["vpn_details"]["server_performance"] = "poor"

    def remove_app_permission(self, app_name: str, permission: str) -> None:
        """Take a permission from an app."""
        app = self.device["app_statuses"].get(app_name)
        if app is not None and permission.lower() in app["permissions"]:
            app["permissions"][permission.lower()] = False

    # --- assertions of tasks -----------------------------------------------------------------------------------------

    def assert_airplane_mode_status(self, expected_status: bool) -> bool:
        """Whether airplane mode is on or off as expected."""
        return bool(self.device["airplane_mode"] == expected_status)

    def assert_service_status(self, expected_status: str) -> bool:
        """Whether the connection is as expected."""
        return bool(self.device["network_connection_status"] == expected_status)

    def assert_mobile_data_status(self, expected_status: bool) -> bool:
        """Whether mobile data work as expected."""
        return self._has_mobile_data() == expected_status

    def assert_mobile_roaming_status(self, expected_status: bool) -> bool:
        """Whether roaming is on or off as expected."""
        return bool(self.device["roaming_enabled"] == expected_status)

    def assert_mobile_data_saver_mode_status(self, expected_status: bool) -> bool:
        """Whether data saver mode is on or off as expected."""
        return bool(self.device["data_saver_mode"] == expected_status)

    def assert_internet_speed(self, expected_speed: float, expected_desc: str | None = None) -> bool:
        """Whether the internet is at least that fast, and in that class."""
        speed, description = self._speed()
        is_class = expected_desc is None or description.lower() == expected_desc.lower()
        return (speed or 0.0) >= expected_speed and is_class

    def assert_internet_not_excellent(self) -> bool:
        """Whether the internet is not excellent."""
        return self._speed()[1] != "Excellent"

    def assert_can_send_mms(self, expected_status: bool) -> bool:
        """Whether picture messages can be sent as expected."""
        return self._can_send_mms() == expected_status

    def assert_mobile_data_usage_exceeded(self, expected_status: bool) -> bool:
        """Whether the data limit is exceeded as expected."""
        return bool(self.surroundings["mobile_data_usage_exceeded"] == expected_status)


def _on(value: bool) -> str:
    return "ON" if value else "OFF"


def _yes(value: bool) -> str:
    return "Yes" if value else "No"
