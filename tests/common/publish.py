"""Documents written by the classes of the library `resync`, by somebody else's understanding of the standard.

    publish.py FILES DOCUMENTS BASE_URI

FILES are published below BASE_URI, DOCUMENTS below BASE_URI/documents/. Standard input is a JSON list of orders:
{"kind": KIND, "name": FILE_NAME, …}. Times are seconds since 1970. What a kind takes else is said at its function.
"""

import json
import os
import sys

from hashlib import md5

from resync.archives import ChangeListArchive, ResourceListArchive
from resync.capability_list import CapabilityList
from resync.change_dump import ChangeDump
from resync.change_dump_manifest import ChangeDumpManifest
from resync.change_list import ChangeList
from resync.dump import Dump
from resync.hashes import Hashes
from resync.mapper import Mapper
from resync.resource import Resource
from resync.resource_dump import ResourceDump
from resync.resource_list import ResourceList
from zipfile import ZIP_DEFLATED, ZipFile

FILES, DOCUMENTS, BASE = sys.argv[1:4]


def uri(name):
    return f"{BASE}documents/{name}"


def entry(order):
    """The resource at a path of FILES, with its change where the order has one; `type` and `links`: lists of relation
    and URI, or path of FILES."""
    resource = Resource(uri=BASE + order["path"], change=order.get("change"))
    if "time" in order:
        resource.ts_datetime = order["time"]
    if resource.change == "deleted":
        return resource
    file = os.path.join(FILES, order["path"])
    resource.timestamp = order.get("lastmod", os.path.getmtime(file))
    resource.length = os.path.getsize(file)
    resource.md5 = Hashes(["md5"], file).md5
    resource.path = file
    resource.mime_type = order.get("type")
    for relation, target in order.get("links", []):
        resource.link_add(relation, target if ":" in target else BASE + target)
    return resource


def written(document, order):
    """Gives `document` its link and the order's times, and writes it."""
    document.up = uri("capabilitylist.xml")
    for name in ("from", "until", "at"):
        if name in order:
            setattr(document, f"md_{name}", order[name])
    document.write(os.path.join(DOCUMENTS, order["name"]))


def resourcelist(order):
    """`entries`, `at`; `spec`."""
    resources = ResourceList(spec_version=order.get("spec", "1.1"))
    resources.add(entry(each) for each in order["entries"])
    written(resources, order)


def changelist(order):
    """`entries` with `change` and `time`; `spec`; `most`: so many entries a document, with an index."""
    spec = order.get("spec", "1.1")
    changes = ChangeList(spec_version=spec, mapper=Mapper([uri("") + "=" + DOCUMENTS]))
    changes.add(entry(each) for each in order["entries"])
    if "most" in order:
        changes.max_sitemap_entries = order["most"]
    written(changes, order)


def changelist_archive(order):
    """`lists`: name, from and until of each; `spec`."""
    archive = ChangeListArchive(spec_version=order.get("spec", "1.1"))
    for each in order["lists"]:
        archive.add(Resource(uri=uri(each["name"]), capability="changelist", ts_from=each["from"], ts_until=each["until"]))
    written(archive, order)


def resourcelist_archive(order):
    """`lists`: name and at of each; `spec`."""
    archive = ResourceListArchive(spec_version=order.get("spec", "1.1"))
    for each in order["lists"]:
        archive.add(Resource(uri=uri(each["name"]), capability="resourcelist", ts_at=each["at"]))
    written(archive, order)


def capabilitylist(order):
    """`capabilities`: names of documents by capability."""
    capabilities = CapabilityList()
    for name, document in order["capabilities"].items():
        capabilities.add_capability(name=name, uri=uri(document))
    capabilities.up = f"{BASE}.well-known/resourcesync"
    capabilities.write(os.path.join(DOCUMENTS, order["name"]))


def resourcedump(order):
    """`entries`; `most`: so many resources a package."""
    packages = Dump([entry(each) for each in order["entries"]])
    packages.max_files = order["most"]
    stem = os.path.join(DOCUMENTS, order["name"].removesuffix(".xml") + "-")
    dump = ResourceDump()
    for number in range(packages.write(stem)):
        package = os.path.basename(f"{stem}{number:05}")
        described = Resource(uri=uri(package + ".zip"), mime_type="application/zip")
        described.length = os.path.getsize(os.path.join(DOCUMENTS, package + ".zip"))
        described.contents = uri(package + ".xml")
        dump.add(described)
    written(dump, order)


def changedump(order):
    """`packages`: `entries`, `from` and `until` of each. An entry may have `text`, a version between, with a name `inside`."""
    dump = ChangeDump()
    for number, each in enumerate(order["packages"]):
        package = f"{order['name'].removesuffix('.xml')}-{number:05}"
        manifest = ChangeDumpManifest()
        with ZipFile(os.path.join(DOCUMENTS, package + ".zip"), "w", ZIP_DEFLATED) as packed:
            for change in each["entries"]:
                resource = entry(change)
                if resource.path is not None:
                    inside = "resources/" + change.get("inside", change["path"])
                    if "text" in change:
                        data = change["text"].encode()
                        packed.writestr(inside, data)
                        resource.length, resource.md5 = len(data), md5(data).hexdigest()
                    else:
                        packed.write(resource.path, inside)
                    resource.path = "/" + inside
                manifest.add(resource)
            packed.writestr("manifest.xml", manifest.as_xml())
        with open(os.path.join(DOCUMENTS, package + ".xml"), "w") as preview:
            preview.write(manifest.as_xml())
        described = Resource(uri=uri(package + ".zip"), mime_type="application/zip", ts_from=each["from"], ts_until=each["until"])
        described.contents = uri(package + ".xml")
        dump.add(described)
    written(dump, order)


for order in json.load(sys.stdin):
    globals()[order["kind"].replace("-", "_")](order)
