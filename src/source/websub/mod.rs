//! Notifications: a subscriber of WebSub hubs and the listener that they deliver to (Framework Notification, sections 3
//! and 4). A delivery is only a reason to look.
