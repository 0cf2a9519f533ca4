"use strict";
// Cloud Storage shows objects to who is logged in at an address that is not theirs, where relative links lead nowhere.
if (location.hostname.endsWith(".googleusercontent.com")) {
  for (const link of document.links) {
    const to = link.getAttribute("href");
    if (!to.startsWith("#")) link.href = document.body.dataset.place + to;
  }
}
