"""Publishes a folder as a Resource Dump with the classes of the library `resync`.

usage: write_dump.py FILES DOCUMENTS BASE MOST [RESOURCE_LIST]

Writes packages of at most MOST files into DOCUMENTS, the Resource Dump that lists them, and a Capability List and a Source
Description of it; with RESOURCE_LIST, the URI of a Resource List, the Capability List offers that too.
"""

import glob
import os
import sys

from resync.capability_list import CapabilityList
from resync.dump import Dump
from resync.mapper import Mapper
from resync.resource import Resource
from resync.resource_dump import ResourceDump
from resync.resource_list_builder import ResourceListBuilder
from resync.source_description import SourceDescription
from resync.w3c_datetime import datetime_to_str

files, documents, base, most = sys.argv[1:5]
builder = ResourceListBuilder(mapper=Mapper([base, files]), set_hashes={"sha-256"}, set_path=True)
builder.set_length = True
dump = Dump(resources=builder.from_disk(paths=[files]))
dump.max_files = int(most)
dump.write(basename=os.path.join(documents, "package"))

listed = ResourceDump()
listed.md_at = datetime_to_str()
listed.up = base + "documents/capabilitylist.xml"
for package in sorted(glob.glob(os.path.join(documents, "package*.zip"))):
    name = os.path.basename(package)
    resource = Resource(uri=base + "documents/" + name, length=os.path.getsize(package), mime_type="application/zip")
    resource.contents = base + "documents/" + name.replace(".zip", ".xml")
    listed.add(resource)
listed.write(os.path.join(documents, "resourcedump.xml"))

capabilities = CapabilityList()
capabilities.up = base + ".well-known/resourcesync"
capabilities.add_capability(listed, base + "documents/resourcedump.xml")
for resource_list in sys.argv[5:]:
    capabilities.add_capability(uri=resource_list, name="resourcelist")
capabilities.write(os.path.join(documents, "capabilitylist.xml"))
description = SourceDescription()
description.add_capability_list(base + "documents/capabilitylist.xml")
description.write(os.path.join(documents, "description.xml"))
