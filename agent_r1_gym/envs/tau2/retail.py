"""The retail domain of tau2-bench: products, users and orders of a shop.

The descriptions of the operations are tau2-bench's (MIT licence): they are part of what the benchmark asks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agent_r1_gym.envs.tau2.database import Row
from agent_r1_gym.envs.tau2.file_schema import Record, Shape, by_tag, choice, flag, items, maybe, number, table, text
from agent_r1_gym.envs.tau2.operations import Operations
from agent_r1_gym.errors import ToolError

_REASONS = ("no longer needed", "ordered by mistake")
_ADDRESS = Record(
    {"address1": text, "address2": text, "city": text, "country": text, "state": text, "zip": text},
)
_VARIANT = Record({"item_id": text, "options": table(text), "available": flag, "price": number})
_PAYMENT_METHOD = by_tag(
    "source",
    {
        "credit_card": Record({"source": text, "id": text, "brand": text, "last_four": text}),
        "gift_card": Record({"source": text, "id": text, "balance": number}),
        "paypal": Record({"source": text, "id": text}),
    },
)
_ORDER_ITEM = Record({"name": text, "product_id": text, "item_id": text, "price": number, "options": table(text)})
_PAYMENT = Record({"transaction_type": choice("payment", "refund"), "amount": number, "payment_method_id": text})
_STATUSES = (
    *("processed", "pending", "pending (item modified)", "delivered"),
    *("cancelled", "exchange requested", "return requested"),
)


class RetailOperations(Operations):
    """Look up and change orders, and the addresses of users."""

    domain: ClassVar[str] = "retail"
    tables: ClassVar[Mapping[str, Shape]] = {
        "products": table(Record({"name": text, "product_id": text, "variants": table(_VARIANT)})),
        "users": table(
            Record(
                {
                    "user_id": text,
                    "name": Record({"first_name": text, "last_name": text}),
                    "address": _ADDRESS,
                    "email": text,
                    "payment_methods": table(_PAYMENT_METHOD),
                    "orders": items(text),
                }
            )
        ),
        "orders": table(
            Record(
                {
                    "order_id": text,
                    "user_id": text,
                    "address": _ADDRESS,
                    "items": items(_ORDER_ITEM),
                    "status": choice(*_STATUSES),
                    "fulfillments": items(Record({"tracking_id": items(text), "item_ids": items(text)})),
                    "payment_history": items(_PAYMENT),
                },
                {
                    "cancel_reason": choice(*_REASONS),
                    "exchange_items": items(text),
                    "exchange_new_items": items(text),
                    "exchange_payment_method_id": text,
                    "exchange_price_difference": maybe(number),
                    "return_items": items(text),
                    "return_payment_method_id": text,
                },
            )
        ),
    }
    tools: ClassVar[tuple[str, ...]] = (
        *("calculate", "cancel_pending_order", "exchange_delivered_order_items", "find_user_id_by_name_zip"),
        *("find_user_id_by_email", "get_order_details", "get_product_details", "get_item_details"),
        *("get_user_details", "list_all_product_types", "modify_pending_order_address"),
        *("modify_pending_order_items", "modify_pending_order_payment", "modify_user_address"),
        *("return_delivered_order_items", "transfer_to_human_agents"),
    )
    writes: ClassVar[frozenset[str]] = frozenset(
        {
            *("cancel_pending_order", "exchange_delivered_order_items", "modify_pending_order_address"),
            *("modify_pending_order_items", "modify_pending_order_payment", "modify_user_address"),
            "return_delivered_order_items",
        }
    )

    # --- reads -------------------------------------------------------------------------------------------------------

    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        """Find user id by first name, last name, and zip code.

        If the user is not found, the function will return an error message. By default, find user id by email, and
        only call this function if the user is not found by email or cannot remember email.

        Args:
            first_name: The first name of the customer, such as 'John'.
            last_name: The last name of the customer, such as 'Doe'.
            zip: The zip code of the customer, such as '12345'.
        """
        wanted = (first_name.lower(), last_name.lower(), zip)
        for user in self.database.rows("users"):
            name = user["name"]
            if (name["first_name"].lower(), name["last_name"].lower(), user["address"]["zip"]) == wanted:
                return str(user["user_id"])
        raise ToolError("User not found")

    def find_user_id_by_email(self, email: str) -> str:
        """Find user id by email. If the user is not found, the function will return an error message.

        Args:
            email: The email of the user, such as 'something@example.com'.
        """
        for user in self.database.rows("users"):
            if user["email"].lower() == email.lower():
                return str(user["user_id"])
        raise ToolError("User not found")

    def get_order_details(self, order_id: str) -> Row:
        """Get the status and details of an order.

        Args:
            order_id: The order id, such as '#W0000000'. Be careful there is a '#' symbol at the beginning of the
                order id.
        """
        return self._order(order_id)

    def get_product_details(self, product_id: str) -> Row:
        """Get the inventory details of a product.

        Args:
            product_id: The product id, such as '6086499569'. Be careful the product id is different from the item id.
        """
        return self._row("products", product_id, "Product not found")

    def get_item_details(self, item_id: str) -> Row:
        """Get the inventory details of an item.

        Args:
            item_id: The item id, such as '6086499569'. Be careful the item id is different from the product id.
        """
        for product in self.database.rows("products"):
            if item_id in product["variants"]:
                variant: Row = product["variants"][item_id]
                return variant
        raise ToolError("Item not found")

    def get_user_details(self, user_id: str) -> Row:
        """Get the details of a user, including their orders.

        Args:
            user_id: The user id, such as 'sara_doe_496'.
        """
        return self._user(user_id)

    def list_all_product_types(self) -> str:
        """List the name and product id of all product types.

        Each product type has a variety of different items with unique item ids and options. There are only 50 product
        types in the store.
        """
        products = {product["name"]: product["product_id"] for product in self.database.rows("products")}
        return json.dumps(products, sort_keys=True)

    # --- pending orders ----------------------------------------------------------------------------------------------

    def cancel_pending_order(self, order_id: str, reason: str) -> Row:
        """Cancel a pending order.

        If the order is already processed or delivered, it cannot be cancelled. The agent needs to explain the
        cancellation detail and ask for explicit user confirmation (yes/no) to proceed. If the user confirms, the
        order status will be changed to 'cancelled' and the payment will be refunded. The refund will be added to the
        user's gift card balance immediately if the payment was made using a gift card, otherwise the refund would
        take 5-7 business days to process. The function returns the order details after the cancellation.

        Args:
            order_id: The order id, such as '#W0000000'. Be careful there is a '#' symbol at the beginning of the
                order id.
            reason: The reason for cancellation, which should be either 'no longer needed' or 'ordered by mistake'.
        """
        if self._order(order_id)["status"] != "pending":
            raise ToolError("Non-pending order cannot be cancelled")
        if reason not in _REASONS:
            raise ToolError("Invalid reason")
        order = self.database.edit("orders", order_id)
        refunds = []
        for payment in order["payment_history"]:
            method_id = payment["payment_method_id"]
            refunds.append(_payment("refund", payment["amount"], method_id))
            self._change_balance(order["user_id"], method_id, payment["amount"])
        order["status"], order["cancel_reason"] = "cancelled", reason
        order["payment_history"].extend(refunds)
        return order

    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Row:
        """Modify the shipping address of a pending order.

        The agent needs to explain the modification detail and ask for explicit user confirmation (yes/no) to proceed.

        Args:
            order_id: The order id, such as '#W0000000'. Be careful there is a '#' symbol at the beginning of the
                order id.
            address1: The first line of the address, such as '123 Main St'.
            address2: The second line of the address, such as 'Apt 1' or ''.
            city: The city, such as 'San Francisco'.
            state: The state, such as 'CA'.
            country: The country, such as 'USA'.
            zip: The zip code, such as '12345'.
        """
        self._pending_order(order_id)
        order = self.database.edit("orders", order_id)
        order["address"] = _address(address1, address2, city, state, country, zip)
        return order

    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Row:
        """Modify items in a pending order to new items of the same product type.

        For a pending order, this function can only be called once. The agent needs to explain the exchange detail and
        ask for explicit user confirmation (yes/no) to proceed.

        Args:
            order_id: The order id, such as '#W0000000'. Be careful there is a '#' symbol at the beginning of the
                order id.
            item_ids: The item ids to be modified, each such as '1008292230'. There could be duplicate items in the
                list.
            new_item_ids: The item ids to be modified for, each such as '1008292230'. There could be duplicate items in
                the list. Each new item id should match the item id in the same position and be of the same product.
            payment_method_id: The payment method id to pay or receive refund for the item price difference, such as
                'gift_card_0000000' or 'credit_card_0000000'. These can be looked up from the user or order details.
        """
        order = self._order(order_id)
        if order["status"] != "pending":
            raise ToolError("Non-pending order cannot be modified")
        _check_contains(order, item_ids, "{} not found")
        if len(item_ids) != len(new_item_ids):
            raise ToolError("The number of items to be exchanged should match")
        difference: float = 0
        variant: Row | None = None
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            if item_id == new_item_id:
                raise ToolError("The new item id should be different from the old item id")
            item, variant = self._exchange(order, item_id, new_item_id)
            difference += variant["price"] - item["price"]
        method = self._payment_method(order["user_id"], payment_method_id)
        if method["source"] == "gift_card" and method["balance"] < difference:
            raise ToolError("Insufficient gift card balance to pay for the new item")
        order = self.database.edit("orders", order_id)
        kind = "payment" if difference > 0 else "refund"
        order["payment_history"].append(_payment(kind, float(abs(difference)), payment_method_id))
        self._change_balance(order["user_id"], payment_method_id, -difference)
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            found = _item(order, item_id)
            if found is None:  # an earlier pair has replaced it
                raise ToolError(f"Item {item_id} not found")
            # Every item gets price and options of the last variant: so does the benchmark, and the gold actions.
            assert variant is not None
            found |= {"item_id": new_item_id, "price": variant["price"], "options": variant["options"]}
        order["status"] = "pending (item modified)"
        return order

    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> Row:
        """Modify the payment method of a pending order.

        The agent needs to explain the modification detail and ask for explicit user confirmation (yes/no) to proceed.

        Args:
            order_id: The order id, such as '#W0000000'. Be careful there is a '#' symbol at the beginning of the
                order id.
            payment_method_id: The payment method id to pay or receive refund for the item price difference, such as
                'gift_card_0000000' or 'credit_card_0000000'. These can be looked up from the user or order details.
        """
        order = self._pending_order(order_id)
        method = self._payment_method(order["user_id"], payment_method_id)
        payments = order["payment_history"]
        if len(payments) != 1 or payments[0]["transaction_type"] != "payment":
            raise ToolError("There should be exactly one payment for a pending order")
        amount, previous = payments[0]["amount"], payments[0]["payment_method_id"]
        if previous == payment_method_id:
            raise ToolError("The new payment method should be different from the current one")
        if method["source"] == "gift_card" and method["balance"] < amount:
            raise ToolError("Insufficient gift card balance to pay for the order")
        order = self.database.edit("orders", order_id)
        order["payment_history"] += [
            _payment("payment", amount, payment_method_id),
            _payment("refund", amount, previous),
        ]
        self._change_balance(order["user_id"], payment_method_id, -amount)
        self._change_balance(order["user_id"], previous, amount)
        return order

    # --- delivered orders --------------------------------------------------------------------------------------------

    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Row:
        """Exchange items in a delivered order to new items of the same product type.

        For a delivered order, return or exchange can be only done once by the agent. The agent needs to explain the
        exchange detail and ask for explicit user confirmation (yes/no) to proceed.

        Args:
            order_id: The order id, such as '#W0000000'. Be careful there is a '#' symbol at the beginning of the
                order id.
            item_ids: The item ids to be exchanged, each such as '1008292230'. There could be duplicate items in the
                list.
            new_item_ids: The item ids to be exchanged for, each such as '1008292230'. There could be duplicate items
                in the list. Each new item id should match the item id in the same position and be of the same product.
            payment_method_id: The payment method id to pay or receive refund for the item price difference, such as
                'gift_card_0000000' or 'credit_card_0000000'. These can be looked up from the user or order details.
        """
        order = self._order(order_id)
        if order["status"] != "delivered":
            raise ToolError("Non-delivered order cannot be exchanged")
        _check_contains(order, item_ids, "Number of {} not found.")
        if len(item_ids) != len(new_item_ids):
            raise ToolError("The number of items to be exchanged should match.")
        difference: float = 0
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            item, variant = self._exchange(order, item_id, new_item_id)
            difference += variant["price"] - item["price"]
        difference = round(difference, 2)
        method = self._payment_method(order["user_id"], payment_method_id)
        if method["source"] == "gift_card" and method["balance"] < difference:
            raise ToolError("Insufficient gift card balance to pay for the price difference")
        order = self.database.edit("orders", order_id)
        return _updated(
            order,
            status="exchange requested",
            exchange_items=sorted(item_ids),
            exchange_new_items=sorted(new_item_ids),
            exchange_payment_method_id=payment_method_id,
            exchange_price_difference=difference,
        )

    def return_delivered_order_items(self, order_id: str, item_ids: list[str], payment_method_id: str) -> Row:
        """Return some items of a delivered order.

        The order status will be changed to 'return requested'. The agent needs to explain the return detail and ask
        for explicit user confirmation (yes/no) to proceed. The user will receive follow-up email for how and where to
        return the item.

        Args:
            order_id: The order id, such as '#W0000000'. Be careful there is a '#' symbol at the beginning of the
                order id.
            item_ids: The item ids to be returned, each such as '1008292230'. There could be duplicate items in the
                list.
            payment_method_id: The payment method id to pay or receive refund for the item price difference, such as
                'gift_card_0000000' or 'credit_card_0000000'. These can be looked up from the user or order details.
        """
        order = self._order(order_id)
        if order["status"] != "delivered":
            raise ToolError("Non-delivered order cannot be returned")
        method = self._payment_method(order["user_id"], payment_method_id)
        if method["source"] != "gift_card" and payment_method_id != order["payment_history"][0]["payment_method_id"]:
            raise ToolError("Payment method should be the original payment method")
        _check_contains(order, item_ids, "Some item not found")
        order = self.database.edit("orders", order_id)
        return _updated(
            order,
            status="return requested",
            return_items=sorted(item_ids),
            return_payment_method_id=payment_method_id,
        )

    # --- users -------------------------------------------------------------------------------------------------------

    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Row:
        """Modify the default address of a user.

        The agent needs to explain the modification detail and ask for explicit user confirmation (yes/no) to proceed.

        Args:
            user_id: The user id, such as 'sara_doe_496'.
            address1: The first line of the address, such as '123 Main St'.
            address2: The second line of the address, such as 'Apt 1' or ''.
            city: The city, such as 'San Francisco'.
            state: The state, such as 'CA'.
            country: The country, such as 'USA'.
            zip: The zip code, such as '12345'.
        """
        self._user(user_id)
        user = self.database.edit("users", user_id)
        user["address"] = _address(address1, address2, city, state, country, zip)
        return user

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _order(self, order_id: str) -> Row:
        return self._row("orders", order_id, "Order not found")

    def _user(self, user_id: str) -> Row:
        return self._row("users", user_id, "User not found")

    def _pending_order(self, order_id: str) -> Row:
        """An order that is pending, also if its items were modified."""
        order = self._order(order_id)
        if "pending" not in order["status"]:
            raise ToolError("Non-pending order cannot be modified")
        return order

    def _payment_method(self, user_id: str, method_id: str) -> Row:
        method: Row | None = self._user(user_id)["payment_methods"].get(method_id)
        if method is None:
            raise ToolError("Payment method not found")
        return method

    def _change_balance(self, user_id: str, method_id: str, amount: float) -> None:
        """Pay out to a gift card, or charge it; other payment methods have no balance here."""
        if self._payment_method(user_id, method_id)["source"] == "gift_card":
            card = self.database.edit("users", user_id)["payment_methods"][method_id]
            card["balance"] = round(card["balance"] + amount, 2)

    def _exchange(self, order: Row, item_id: str, new_item_id: str) -> tuple[Row, Row]:
        """An item of an order, and the available variant of the same product that shall replace it."""
        item = _item(order, item_id)
        if item is None:
            raise ToolError(f"Item {item_id} not found")
        variant: Row | None = self.get_product_details(item["product_id"])["variants"].get(new_item_id)
        if variant is None:
            raise ToolError("Variant not found")
        if not variant["available"]:
            raise ToolError(f"New item {new_item_id} not found or available")
        return item, variant


def _item(order: Row, item_id: str) -> Row | None:
    return next((item for item in order["items"] if item["item_id"] == item_id), None)


def _check_contains(order: Row, item_ids: Sequence[str], problem: str) -> None:
    """Refuse items that an order does not contain, or not that often."""
    ordered = [item["item_id"] for item in order["items"]]
    for item_id in item_ids:
        if item_ids.count(item_id) > ordered.count(item_id):
            raise ToolError(problem.format(item_id))


def _payment(kind: str, amount: float, method_id: str) -> Row:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": method_id}


def _address(address1: str, address2: str, city: str, state: str, country: str, zip: str) -> Row:
    return {
        "address1": address1,
        "address2": address2,
        "city": city,
        "country": country,
        "state": state,
        "zip": zip,
    }


def _updated(row: Row, **values: Any) -> Row:
    row.update(values)
    return row
