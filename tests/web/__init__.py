"""Web archives and pages: what is broken costs itself, and no page is lost or doubled."""
