"""The airline domain of tau2-bench: flights, users and reservations.

The descriptions of the operations are tau2-bench's (MIT licence): they are part of what the benchmark asks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from agent_r1_gym.envs.tau2.database import Row
from agent_r1_gym.envs.tau2.file_schema import Record, Shape, by_tag, choice, integer, items, maybe, number, table, text
from agent_r1_gym.envs.tau2.operations import Operations, object_schema
from agent_r1_gym.errors import ToolError

Cabin = Literal["business", "economy", "basic_economy"]
_NOW = "2024-05-15T15:00:00"
_NEW_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")
_NEW_CERTIFICATES = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
_BAG_PRICE, _INSURANCE_PRICE = 50, 30
_AIRPORTS = {
    **{"SFO": "San Francisco", "JFK": "New York", "LAX": "Los Angeles", "ORD": "Chicago", "DFW": "Dallas"},
    **{"DEN": "Denver", "SEA": "Seattle", "ATL": "Atlanta", "MIA": "Miami", "BOS": "Boston", "PHX": "Phoenix"},
    **{"IAH": "Houston", "LAS": "Las Vegas", "MCO": "Orlando", "EWR": "Newark", "CLT": "Charlotte"},
    **{"MSP": "Minneapolis", "DTW": "Detroit", "PHL": "Philadelphia", "LGA": "LaGuardia"},
}

_cabin, _insurance = choice("business", "economy", "basic_economy"), choice("yes", "no")
_flight_type = choice("round_trip", "one_way")
_PASSENGER = Record({"first_name": text, "last_name": text, "dob": text})
_PAYMENT = Record({"payment_id": text, "amount": integer})
_FLIGHT_INFO = Record({"flight_number": text, "date": text})
_PAYMENT_METHOD = by_tag(
    "source",
    {
        "credit_card": Record({"source": text, "id": text, "brand": text, "last_four": text}),
        "gift_card": Record({"source": text, "id": text, "amount": number}),
        "certificate": Record({"source": text, "id": text, "amount": number}),
    },
)
_BY_CABIN = table(integer)
_ESTIMATED = {"estimated_departure_time_est": text, "estimated_arrival_time_est": text}
_DATE = by_tag(
    "status",
    {
        "available": Record({"status": text, "available_seats": _BY_CABIN, "prices": _BY_CABIN}),
        "landed": Record({"status": text, "actual_departure_time_est": text, "actual_arrival_time_est": text}),
        "cancelled": Record({"status": text}),
        "delayed": Record({"status": text, **_ESTIMATED}),
        "flying": Record({"status": text, "actual_departure_time_est": text, "estimated_arrival_time_est": text}),
        "on time": Record({"status": text, **_ESTIMATED}),
    },
)


class AirlineOperations(Operations):
    """Look up flights, and book, change and cancel reservations."""

    domain: ClassVar[str] = "airline"
    tables: ClassVar[Mapping[str, Shape]] = {
        "flights": table(
            Record(
                {
                    "flight_number": text,
                    "origin": text,
                    "destination": text,
                    "scheduled_departure_time_est": text,
                    "scheduled_arrival_time_est": text,
                    "dates": table(_DATE),
                }
            )
        ),
        "users": table(
            Record(
                {
                    "user_id": text,
                    "name": Record({"first_name": text, "last_name": text}),
                    "address": Record(
                        {
                            "address1": text,
                            "address2": maybe(text),
                            "city": text,
                            "country": text,
                            "state": text,
                            "zip": text,
                        }
                    ),
                    "email": text,
                    "dob": text,
                    "payment_methods": table(_PAYMENT_METHOD),
                    "saved_passengers": items(_PASSENGER),
                    "membership": choice("gold", "silver", "regular"),
                    "reservations": items(text),
                }
            )
        ),
        "reservations": table(
            Record(
                {
                    "reservation_id": text,
                    "user_id": text,
                    "origin": text,
                    "destination": text,
                    "flight_type": _flight_type,
                    "cabin": _cabin,
                    "flights": items(
                        Record(
                            {
                                "flight_number": text,
                                "origin": text,
                                "destination": text,
                                "date": text,
                                "price": integer,
                            }
                        )
                    ),
                    "passengers": items(_PASSENGER),
                    "payment_history": items(_PAYMENT),
                    "created_at": text,
                    "total_baggages": integer,
                    "nonfree_baggages": integer,
                    "insurance": _insurance,
                },
                {"status": choice("cancelled")},
            )
        ),
    }
    tools: ClassVar[tuple[str, ...]] = (
        *("book_reservation", "calculate", "cancel_reservation", "get_reservation_details", "get_user_details"),
        *("list_all_airports", "search_direct_flight", "search_onestop_flight", "send_certificate"),
        *("transfer_to_human_agents", "update_reservation_baggages", "update_reservation_flights"),
        *("update_reservation_passengers", "get_flight_status"),
    )
    writes: ClassVar[frozenset[str]] = frozenset(
        {
            *("book_reservation", "cancel_reservation", "send_certificate", "update_reservation_baggages"),
            *("update_reservation_flights", "update_reservation_passengers"),
        }
    )
    schemas: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "flights": {
            "type": "array",
            "items": object_schema(
                _FLIGHT_INFO,
                {
                    "flight_number": "Flight number, such as 'HAT001'.",
                    "date": "The date for the flight in the format 'YYYY-MM-DD', such as '2024-05-01'.",
                },
            ),
        },
        "passengers": {
            "type": "array",
            "items": object_schema(
                _PASSENGER,
                {
                    "first_name": "Passenger's first name",
                    "last_name": "Passenger's last name",
                    "dob": "Date of birth in YYYY-MM-DD format",
                },
            ),
        },
        "payment_methods": {
            "type": "array",
            "items": object_schema(
                _PAYMENT,
                {
                    "payment_id": "Unique identifier for the payment",
                    "amount": "Payment amount in dollars",
                },
            ),
        },
    }

    @classmethod
    def arrange(cls, files: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take the three files of the first tau-bench too, whose users do not contain their id."""
        if "db" in files:
            return super().arrange(files)
        users = {key: {"user_id": key, **user} for key, user in files["users"].items()}
        return {"flights": files["flights"], "users": users, "reservations": files["reservations"]}

    # --- reads -------------------------------------------------------------------------------------------------------

    def get_reservation_details(self, reservation_id: str) -> Row:
        """Get the details of a reservation.

        Args:
            reservation_id: The reservation ID, such as '8JX2WO'.
        """
        return self._row("reservations", reservation_id, f"Reservation {reservation_id} not found")

    def get_user_details(self, user_id: str) -> Row:
        """Get the details of a user, including their reservations.

        Args:
            user_id: The user ID, such as 'sara_doe_496'.
        """
        return self._row("users", user_id, f"User {user_id} not found")

    def list_all_airports(self) -> list[Row]:
        """Returns a list of all available airports."""
        return [{"iata": code, "city": city} for code, city in _AIRPORTS.items()]

    def search_direct_flight(self, origin: str, destination: str, date: str) -> list[Row]:
        """Search for direct flights between two cities on a specific date.

        Args:
            origin: The origin city airport in three letters, such as 'JFK'.
            destination: The destination city airport in three letters, such as 'LAX'.
            date: The date of the flight in the format 'YYYY-MM-DD', such as '2024-01-01'.
        """
        return list(self._direct_flights(date, origin, destination))

    def search_onestop_flight(self, origin: str, destination: str, date: str) -> list[list[Row]]:
        """Search for one-stop flights between two cities on a specific date.

        Args:
            origin: The origin city airport in three letters, such as 'JFK'.
            destination: The destination city airport in three letters, such as 'LAX'.
            date: The date of the flight in the format 'YYYY-MM-DD', such as '2024-05-01'.
        """
        results = []
        for first in self._direct_flights(date, origin, None):
            arrival = first["scheduled_arrival_time_est"]
            next_date = f"2024-05-{int(date[-2:]) + 1}" if "+1" in arrival else date
            for second in self._direct_flights(next_date, first["destination"], destination):
                if second["scheduled_departure_time_est"] >= arrival:
                    results.append([{**first, "date": date}, {**second, "date": next_date}])
        return results

    def get_flight_status(self, flight_number: str, date: str) -> str:
        """Get the status of a flight.

        Args:
            flight_number: The flight number.
            date: The date of the flight.
        """
        return str(self._flight_on(flight_number, date)["status"])

    # --- writes ------------------------------------------------------------------------------------------------------

    def book_reservation(
        self,
        user_id: str,
        origin: str,
        destination: str,
        flight_type: Literal["round_trip", "one_way"],
        cabin: Cabin,
        flights: list[dict],  # type: ignore[type-arg]  # the schema is in `schemas`
        passengers: list[dict],  # type: ignore[type-arg]
        payment_methods: list[dict],  # type: ignore[type-arg]
        total_baggages: int,
        nonfree_baggages: int,
        insurance: Literal["yes", "no"],
    ) -> Row:
        """Book a reservation.

        Args:
            user_id: The ID of the user to book the reservation such as 'sara_doe_496'`.
            origin: The IATA code for the origin city such as 'SFO'.
            destination: The IATA code for the destination city such as 'JFK'.
            flight_type: The type of flight such as 'one_way' or 'round_trip'.
            cabin: The cabin class such as 'basic_economy', 'economy', or 'business'.
            flights: An array of objects containing details about each piece of flight.
            passengers: An array of objects containing details about each passenger.
            payment_methods: An array of objects containing details about each payment method.
            total_baggages: The total number of baggage items to book the reservation.
            nonfree_baggages: The number of non-free baggage items to book the reservation.
            insurance: Whether the reservation has insurance.
        """
        payments = [_PAYMENT(payment, "payment_methods") for payment in payment_methods]
        user = self.get_user_details(user_id)
        reservation = {
            "reservation_id": self._new_reservation_id(),
            "user_id": user_id,
            "origin": origin,
            "destination": destination,
            "flight_type": _flight_type(flight_type, "flight_type"),
            "cabin": _cabin(cabin, "cabin"),
            "flights": [self._booked(flight, cabin, len(passengers)) for flight in flights],
            "passengers": [_PASSENGER(passenger, "passengers") for passenger in passengers],
            "payment_history": copy.deepcopy(payments),
            "created_at": _NOW,
            "total_baggages": integer(total_baggages, "total_baggages"),
            "nonfree_baggages": integer(nonfree_baggages, "nonfree_baggages"),
            "insurance": _insurance(insurance, "insurance"),
            "status": None,
        }
        price = sum(flight["price"] for flight in reservation["flights"]) * len(passengers)
        price += _INSURANCE_PRICE * len(passengers) * (insurance == "yes") + _BAG_PRICE * nonfree_baggages
        self._check_payments(user, payments, price)
        self._deduct(user_id, payments)
        for flight in flights:
            row = self.database.edit("flights", flight["flight_number"])
            row["dates"][flight["date"]]["available_seats"][cabin] -= len(passengers)
        self.database.add("reservations", reservation["reservation_id"], reservation)
        self.database.edit("users", user_id)["reservations"].append(reservation["reservation_id"])
        return reservation

    def cancel_reservation(self, reservation_id: str) -> Row:
        """Cancel the whole reservation.

        Args:
            reservation_id: The reservation ID, such as 'ZFA04Y'.
        """
        self.get_reservation_details(reservation_id)
        reservation = self.database.edit("reservations", reservation_id)
        payments = reservation["payment_history"]
        payments += [{"payment_id": paid["payment_id"], "amount": -paid["amount"]} for paid in payments]
        reservation["status"] = "cancelled"
        return reservation

    def send_certificate(self, user_id: str, amount: int) -> str:
        """Send a certificate to a user. Be careful!

        Args:
            user_id: The ID of the user to book the reservation, such as 'sara_doe_496'.
            amount: The amount of the certificate to send.
        """
        self.get_user_details(user_id)
        methods = self.database.edit("users", user_id)["payment_methods"]
        new_id = next((certificate for certificate in _NEW_CERTIFICATES if certificate not in methods), None)
        if new_id is None:
            raise ToolError("Too many certificates")
        methods[new_id] = {"source": "certificate", "id": new_id, "amount": float(amount)}
        return f"Certificate {new_id} added to user {user_id} with amount {amount}."

    def update_reservation_baggages(
        self, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
    ) -> Row:
        """Update the baggage information of a reservation.

        Args:
            reservation_id: The reservation ID, such as 'ZFA04Y'
            total_baggages: The updated total number of baggage items included in the reservation.
            nonfree_baggages: The updated number of non-free baggage items included in the reservation.
            payment_id: The payment id stored in user profile, such as 'credit_card_7815826', 'gift_card_7815826',
                'certificate_7815826'.
        """
        reservation = self.get_reservation_details(reservation_id)
        price = _BAG_PRICE * max(0, nonfree_baggages - reservation["nonfree_baggages"])
        payments = self._pay_for_update(reservation["user_id"], payment_id, price)
        reservation = self.database.edit("reservations", reservation_id)
        reservation["payment_history"] += payments
        reservation["total_baggages"], reservation["nonfree_baggages"] = total_baggages, nonfree_baggages
        return reservation

    def update_reservation_flights(
        self,
        reservation_id: str,
        cabin: Cabin,
        flights: list[dict],  # type: ignore[type-arg]
        payment_id: str,
    ) -> Row:
        """Update the flight information of a reservation.

        Args:
            reservation_id: The reservation ID, such as 'ZFA04Y'.
            cabin: The cabin class of the reservation
            flights: An array of objects containing details about each piece of flight in the ENTIRE new reservation.
                Even if the a flight segment is not changed, it should still be included in the array.
            payment_id: The payment id stored in user profile, such as 'credit_card_7815826', 'gift_card_7815826',
                'certificate_7815826'.
        """
        reservation = self.get_reservation_details(reservation_id)
        passengers = len(reservation["passengers"])
        kept = reservation["flights"] if cabin == reservation["cabin"] else []
        booked = []
        for wanted in flights:
            key = (wanted["flight_number"], wanted["date"])
            same = next((flight for flight in kept if (flight["flight_number"], flight["date"]) == key), None)
            booked.append(self._booked(wanted, cabin, passengers) if same is None else dict(same))
        price = sum(flight["price"] for flight in booked) - sum(flight["price"] for flight in reservation["flights"])
        payments = self._pay_for_update(reservation["user_id"], payment_id, price * passengers)
        reservation = self.database.edit("reservations", reservation_id)
        reservation["payment_history"] += payments
        reservation["flights"], reservation["cabin"] = booked, cabin
        return reservation

    def update_reservation_passengers(
        self,
        reservation_id: str,
        passengers: list[dict],  # type: ignore[type-arg]
    ) -> Row:
        """Update the passenger information of a reservation.

        Args:
            reservation_id: The reservation ID, such as 'ZFA04Y'.
            passengers: An array of objects containing details about each passenger.
        """
        updated = [_PASSENGER(passenger, "passengers") for passenger in passengers]
        if len(updated) != len(self.get_reservation_details(reservation_id)["passengers"]):
            raise ToolError("Number of passengers does not match")
        reservation = self.database.edit("reservations", reservation_id)
        reservation["passengers"] = updated
        return reservation

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _flight_on(self, flight_number: str, date: str) -> Row:
        dates = self._row("flights", flight_number, f"Flight {flight_number} not found")["dates"]
        if date not in dates:
            raise ToolError(f"Flight {flight_number} not found on date {date}")
        found: Row = dates[date]
        return found

    def _direct_flights(self, date: str, origin: str, destination: str | None) -> Iterator[Row]:
        """The available flights of a day, as the searches show them."""
        for flight in self.database.rows("flights"):
            day = flight["dates"].get(date)
            if day is None or day["status"] != "available" or flight["origin"] != origin:
                continue
            if destination is None or flight["destination"] == destination:
                yield {
                    "flight_number": flight["flight_number"],
                    "origin": flight["origin"],
                    "destination": flight["destination"],
                    "status": "available",
                    "scheduled_departure_time_est": flight["scheduled_departure_time_est"],
                    "scheduled_arrival_time_est": flight["scheduled_arrival_time_est"],
                    "date": None,
                    "available_seats": day["available_seats"],
                    "prices": day["prices"],
                }

    def _booked(self, wanted: Mapping[str, Any], cabin: str, passengers: int) -> Row:
        """A flight as a reservation stores it, at today's price."""
        number, date = wanted["flight_number"], wanted["date"]
        day = self._flight_on(number, date)
        if day["status"] != "available":
            raise ToolError(f"Flight {number} not available on date {date}")
        if day["available_seats"][cabin] < passengers:
            raise ToolError(f"Not enough seats on flight {number}")
        flight = self._row("flights", number, "")
        route = {"origin": flight["origin"], "destination": flight["destination"]}
        return {"flight_number": number, **route, "date": date, "price": day["prices"][cabin]}

    def _new_reservation_id(self) -> str:
        for reservation_id in _NEW_RESERVATIONS:
            if self.database.find("reservations", reservation_id) is None:
                return reservation_id
        raise ToolError("Too many reservations")

    def _check_payments(self, user: Row, payments: Sequence[Row], price: int) -> None:
        """Refuse payments that a user cannot make, or that do not add up to the price."""
        for payment in payments:
            method = user["payment_methods"].get(payment["payment_id"])
            if method is None:
                raise ToolError(f"Payment method {payment['payment_id']} not found")
            if method["source"] in ("gift_card", "certificate") and method["amount"] < payment["amount"]:
                raise ToolError(f"Not enough balance in payment method {payment['payment_id']}")
        paid = sum(payment["amount"] for payment in payments)
        if paid != price:
            raise ToolError(f"Payment amount does not add up, total price is {price}, but paid {paid}")

    def _deduct(self, user_id: str, payments: Sequence[Row]) -> None:
        """Charge gift cards, and use up certificates."""
        methods = self.database.edit("users", user_id)["payment_methods"]
        for payment in payments:
            method = methods[payment["payment_id"]]
            if method["source"] == "gift_card":
                method["amount"] -= payment["amount"]
            elif method["source"] == "certificate":
                del methods[payment["payment_id"]]

    def _pay_for_update(self, user_id: str, payment_id: str, price: int) -> list[Row]:
        """Charge the price of a change, or refund it; the payment to record, none for 0."""
        method = self.get_user_details(user_id)["payment_methods"].get(payment_id)
        if method is None:
            raise ToolError("Payment method not found")
        if method["source"] == "certificate":
            raise ToolError("Certificate cannot be used to update reservation")
        if method["source"] == "gift_card":
            if method["amount"] < price:
                raise ToolError("Gift card balance is not enough")
            self.database.edit("users", user_id)["payment_methods"][payment_id]["amount"] -= price
        return [{"payment_id": payment_id, "amount": price}] if price else []
