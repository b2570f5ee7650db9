"""A web service that publishes: the order is on disk before the caller gets its 201.

PORT=8000 python fastapi_service.py
curl -d '{"item": "pizza", "count": 2}' -H 'content-type: application/json' localhost:8000/orders
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

import mq


class Order(BaseModel):
    item: str
    count: int = 1


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One client for all requests: those that come at the same time share a request to the broker, and its fsync."""
    async with mq.AsyncClient(timeout=5.0) as client:
        await client.create_channel("web-orders", exist_ok=True)
        app.state.mq = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def place(order: Order, request: Request) -> dict[str, int]:
    try:
        stored = await request.app.state.mq.publish("web-orders", order.model_dump(), key=order.item)
    except mq.MqError as error:
        if error.retryable:  # the broker is away or full: the caller may try again
            raise HTTPException(503, str(error), headers={"Retry-After": "1"}) from None
        raise
    return {"order": stored.offset}


@app.get("/health")
async def health(request: Request) -> dict[str, str]:
    return {"broker": (await request.app.state.mq.server_info()).version}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")), log_level="warning")
