"""What people and machines read: tables on the console, exports, figures."""
