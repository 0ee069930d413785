"""The mock domain of tau2-bench: a list of tasks, with an inbox on the user's side; small enough to read whole.

The descriptions of the operations are tau2-bench's (MIT licence).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from agent_r1_gym.envs.tau2.database import Row
from agent_r1_gym.envs.tau2.file_schema import Record, Shape, choice, items, maybe, table, text
from agent_r1_gym.envs.tau2.operations import Operations

_STATUSES = ("pending", "completed")


class MockOperations(Operations):
    """Create tasks of users and set their status; the user reads notifications."""

    domain: ClassVar[str] = "mock"
    tables: ClassVar[Mapping[str, Shape]] = {
        "tasks": table(
            Record({"task_id": text, "title": text, "description": maybe(text), "status": choice(*_STATUSES)})
        ),
        "users": table(Record({"user_id": text, "name": text, "tasks": items(text)})),
    }
    user_tables: ClassVar[Mapping[str, Shape]] = {
        "notifications": table(
            Record({"notification_id": text, "message": text, "status": choice("unread", "read")}, {"task_id": text})
        )
    }
    tools: ClassVar[tuple[str, ...]] = ("create_task", "get_users", "update_task_status", "transfer_to_human_agents")
    user_tools: ClassVar[tuple[str, ...]] = ("check_notifications", "dismiss_notification")
    writes: ClassVar[frozenset[str]] = frozenset({"create_task", "update_task_status"})

    def create_task(self, user_id: str, title: str, description: str | None = None) -> Row:
        """Create a new task for a user.

        Args:
            user_id: The ID of the user creating the task
            title: The title of the task
            description: Optional description of the task
        """
        self._row("users", user_id, f"User {user_id} not found")
        task_id = f"task_{self.database.size('tasks') + 1}"
        task = {"task_id": task_id, "title": title, "description": description, "status": "pending"}
        self.database.add("tasks", task_id, task)
        self.database.edit("users", user_id)["tasks"].append(task_id)
        return task

    def get_users(self) -> list[Row]:
        """Get all users in the database."""
        return list(self.database.rows("users"))

    def update_task_status(self, task_id: str, status: Literal["pending", "completed"]) -> Row:
        """Update the status of a task.

        Args:
            task_id: The ID of the task to update
            status: The new status of the task
        """
        self._task(task_id)
        task = self.database.edit("tasks", task_id)
        task["status"] = status
        return task

    # --- the user's inbox --------------------------------------------------------------------------------------------

    def check_notifications(self) -> list[Row]:
        """Check all notifications in the user's inbox."""
        return list(self.database.rows("notifications"))

    def dismiss_notification(self, notification_id: str) -> str:
        """Dismiss (mark as read) a notification.

        Args:
            notification_id: The ID of the notification to dismiss.
        """
        self._row("notifications", notification_id, f"Notification {notification_id} not found")
        self.database.edit("notifications", notification_id)["status"] = "read"
        return f"Notification {notification_id} dismissed"

    def add_notification(self, notification_id: str, message: str, task_id: str | None = None) -> Row:
        """Add a notification; tasks do so before an episode."""
        row = {"notification_id": notification_id, "message": message, "status": "unread", "task_id": task_id}
        self.database.add("notifications", notification_id, row)
        return row

    # --- assertions of tasks -----------------------------------------------------------------------------------------

    def assert_number_of_tasks(self, user_id: str, expected_number: int) -> bool:
        """Whether a user has that many tasks."""
        return len(self._row("users", user_id, f"User {user_id} not found")["tasks"]) == expected_number

    def assert_task_status(self, task_id: str, expected_status: str) -> bool:
        """Whether a task has that status."""
        return bool(self._task(task_id)["status"] == expected_status)

    def assert_notification_status(self, notification_id: str, expected_status: str) -> bool:
        """Whether a notification has that status."""
        row = self._row("notifications", notification_id, f"Notification {notification_id} not found")
        return bool(row["status"] == expected_status)

    def _task(self, task_id: str) -> Row:
        return self._row("tasks", task_id, f"Task {task_id} not found")
